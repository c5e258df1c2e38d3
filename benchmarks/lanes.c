/* The limit for ensembles: dopri5 on Lorenz, eight members side by side in vectors, written out by hand.
 *
 * Each lane has its own time and step; one that is done takes the next member.  Compiled by c_loops.py with -O3
 * -march=native -ffp-contract=fast.  err^(-1/5) is a guess from the bits of the number and three of Newton's steps.
 */
#include <math.h>
#include <stdint.h>

#define LANES 8
typedef double vec __attribute__((vector_size(8 * LANES)));
typedef int64_t mask __attribute__((vector_size(8 * LANES)));

static inline vec all(double x) { return x - (vec){0}; }
static inline vec pick(mask m, vec x, vec y) { return (vec)((m & (mask)x) | (~m & (mask)y)); }
static inline vec size(vec x) { return (vec)((mask)x & INT64_MAX); }
static inline vec most(vec x, vec y) { return pick(x > y, x, y); }
static inline vec least(vec x, vec y) { return pick(x < y, x, y); }

static inline vec root(vec x)
{
    for (int l = 0; l < LANES; l++)
        x[l] = sqrt(x[l]);
    return x;
}

static inline vec fifth_root_inverse(vec x)
{
    vec bits = __builtin_convertvector((mask)x, vec);
    vec r = (vec)__builtin_convertvector(1.2 * 4607182418800017408.0 - 0.2 * bits, mask);
    for (int i = 0; i < 3; i++) {
        vec r2 = r * r;
        r = r * (1.2 - 0.2 * x * (r2 * r2 * r));
    }
    return r;
}

static inline void lorenz(const vec *y, vec rho, vec *dy)
{
    dy[0] = 10.0 * (y[1] - y[0]);
    dy[1] = y[0] * (rho - y[2]) - y[1];
    dy[2] = y[0] * y[1] - 8.0 / 3.0 * y[2];
}

#define STAGE(i, sum)                                                                                                  \
    for (int k = 0; k < 3; k++)                                                                                        \
        z[k] = y[k] + h * (sum);                                                                                       \
    lorenz(z, rho, K[i]);

/* From (1, 1, 1) to t_end for every rho; returns all attempted steps. */
int64_t lanes(const double *rhos, int64_t count, double t_end, double first_step, double tol, double *ends)
{
    vec y[3], z[3], K[7][3], t = all(0), h_next = all(0), rho = all(0);
    int64_t member[LANES], next = 0, live = 0, attempts = 0;
    mask idle;
    for (int l = 0; l < LANES; l++)
        member[l] = -1;
    for (int k = 0; k < 3; k++)
        y[k] = all(1);
    for (;;) {
        for (int l = 0; l < LANES; l++)
            if (member[l] < 0 && next < count) {
                member[l] = next;
                rho[l] = rhos[next++];
                t[l] = 0.0;
                h_next[l] = first_step;
                y[0][l] = y[1][l] = y[2][l] = 1.0;
                live++;
            }
        if (live == 0)
            return attempts;
        for (int l = 0; l < LANES; l++)
            idle[l] = member[l] < 0 ? -1 : 0;
        lorenz(y, rho, K[0]);
        for (int is_quiet = 1; is_quiet;) {
            vec remaining = t_end - t;
            mask is_last = h_next >= remaining * (1.0 - 1e-9);
            vec h = pick(is_last, remaining, h_next);
            STAGE(1, 1.0 / 5 * K[0][k])
            STAGE(2, 3.0 / 40 * K[0][k] + 9.0 / 40 * K[1][k])
            STAGE(3, 44.0 / 45 * K[0][k] - 56.0 / 15 * K[1][k] + 32.0 / 9 * K[2][k])
            STAGE(4, 19372.0 / 6561 * K[0][k] - 25360.0 / 2187 * K[1][k] + 64448.0 / 6561 * K[2][k]
                         - 212.0 / 729 * K[3][k])
            STAGE(5, 9017.0 / 3168 * K[0][k] - 355.0 / 33 * K[1][k] + 46732.0 / 5247 * K[2][k] + 49.0 / 176 * K[3][k]
                         - 5103.0 / 18656 * K[4][k])
            STAGE(6, 35.0 / 384 * K[0][k] + 500.0 / 1113 * K[2][k] + 125.0 / 192 * K[3][k] - 2187.0 / 6784 * K[4][k]
                         + 11.0 / 84 * K[5][k])
            vec total = all(0);
            for (int k = 0; k < 3; k++) {
                vec sum = (35.0 / 384 - 5179.0 / 57600) * K[0][k] + (500.0 / 1113 - 7571.0 / 16695) * K[2][k]
                          + (125.0 / 192 - 393.0 / 640) * K[3][k] + (-2187.0 / 6784 + 92097.0 / 339200) * K[4][k]
                          + (11.0 / 84 - 187.0 / 2100) * K[5][k] - 1.0 / 40 * K[6][k];
                vec x = h * sum / (tol + tol * most(size(y[k]), size(z[k])));
                total += x * x;
            }
            vec error = root(total / 3.0);
            mask is_good = error <= all(1);
            vec factor = 0.9 * fifth_root_inverse(most(error, all(1e-10)));
            h_next = h * least(all(10), most(all(0.2), factor));
            for (int k = 0; k < 3; k++) {
                y[k] = pick(is_good, z[k], y[k]);
                K[0][k] = pick(is_good, K[6][k], K[0][k]);
            }
            t = pick(is_good, pick(is_last, all(t_end), t + h), t);
            attempts += live;
            mask is_done = is_good & is_last & ~idle;
            for (int l = 0; l < LANES; l++)
                is_quiet &= is_done[l] == 0;
            if (!is_quiet)
                for (int l = 0; l < LANES; l++)
                    if (is_done[l]) {
                        for (int k = 0; k < 3; k++)
                            ends[3 * member[l] + k] = y[k][l];
                        member[l] = -1;
                        live--;
                    }
        }
    }
}
