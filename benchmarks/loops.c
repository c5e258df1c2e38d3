/* The limit: the same algorithms written out by hand in C, one copy of each loop for each problem.
 *
 * Every sum is a chain of fma() in the order of stepnet's kernels, so both codes round alike and take the same steps,
 * on chaotic problems too.  Compiled by c_loops.py with -O3 -march=native -ffp-contract=off: the fma() that are
 * written are then the only ones, and the compiler is free in everything else.
 */
#include <math.h>
#include <stdint.h>

#define INLINE static inline __attribute__((always_inline))

/* With -DCALLED right-hand sides stay functions of their own, as they are for a solver that gets their address. */
#ifdef CALLED
#define FIELD static __attribute__((noipa))
#else
#define FIELD INLINE
#endif

/* Right-hand sides, as in problems.py. */

FIELD void lorenz(const double *y, double *dy)
{
    dy[0] = 10.0 * (y[1] - y[0]);
    dy[1] = fma(y[0], 28.0 - y[2], -y[1]);
    dy[2] = fma(y[0], y[1], -(8.0 / 3.0 * y[2]));
}

FIELD void arenstorf(const double *y, double *dy)
{
    const double mu = 0.012277471, nu = 1.0 - mu;
    double a = y[0] + mu, b = y[0] - nu;
    double A = fma(a, a, y[1] * y[1]), B = fma(b, b, y[1] * y[1]);
    double earth = nu / (A * sqrt(A)), moon = mu / (B * sqrt(B));
    dy[0] = y[2];
    dy[1] = y[3];
    dy[2] = fma(-moon, b, fma(-earth, a, fma(2.0, y[3], y[0])));
    dy[3] = fma(-moon, y[1], fma(-earth, y[1], fma(-2.0, y[2], y[1])));
}

FIELD void pleiades(const double *y, double *dy)
{
    for (int i = 0; i < 14; i++) {
        dy[i] = y[14 + i];
        dy[14 + i] = 0.0;
    }
    for (int i = 1; i < 7; i++)
        for (int j = 0; j < i; j++) {
            double dx = y[j] - y[i], dz = y[7 + j] - y[7 + i];
            double r2 = fma(dx, dx, dz * dz);
            double w = 1.0 / (r2 * sqrt(r2));
            dx *= w;
            dz *= w;
            dy[14 + i] = fma(j + 1.0, dx, dy[14 + i]);
            dy[21 + i] = fma(j + 1.0, dz, dy[21 + i]);
            dy[14 + j] = fma(-(i + 1.0), dx, dy[14 + j]);
            dy[21 + j] = fma(-(i + 1.0), dz, dy[21 + j]);
        }
}

/* Dormand & Prince 5(4), adaptive, with the controller "I" and the compensated clock of stepnet. */

#define SUM1(a, K) ((a) * K[0][k])
#define SUM2(a, b, K) fma(b, K[1][k], SUM1(a, K))
#define SUM3(a, b, c, K) fma(c, K[2][k], SUM2(a, b, K))
#define SUM4(a, b, c, d, K) fma(d, K[3][k], SUM3(a, b, c, K))
#define SUM5(a, b, c, d, e, K) fma(e, K[4][k], SUM4(a, b, c, d, K))
/* The second weight is 0 from here on, and left out. */
#define SUM6(a, c, d, e, f, K) fma(f, K[5][k], fma(e, K[4][k], fma(d, K[3][k], fma(c, K[2][k], SUM1(a, K)))))

#define STAGE(i, sum)                                                                                                  \
    for (int k = 0; k < n; k++)                                                                                        \
        z[k] = fma(h, sum, y[k]);                                                                                      \
    f(z, K[i]);

/* counts: accepted and rejected steps, evaluations; a problem's size and right-hand side are constants after inlining. */
INLINE void dopri5(void (*f)(const double *, double *), const int n, const double *start, double t_end, double h,
                   double tol, double *end, int64_t *counts)
{
    double y[n], z[n], K[7][n];
    double t = 0.0, t_low = 0.0;
    int64_t accepted = 0, rejected = 0;
    int was_rejected = 0;
    for (int k = 0; k < n; k++)
        y[k] = start[k];
    f(y, K[0]);
    for (;;) {
        double remaining = (t_end - t) - t_low;
        int is_last = fabs(h) >= fabs(remaining) * (1.0 - 1e-9);
        if (is_last)
            h = remaining;
        STAGE(1, SUM1(1.0 / 5, K))
        STAGE(2, SUM2(3.0 / 40, 9.0 / 40, K))
        STAGE(3, SUM3(44.0 / 45, -56.0 / 15, 32.0 / 9, K))
        STAGE(4, SUM4(19372.0 / 6561, -25360.0 / 2187, 64448.0 / 6561, -212.0 / 729, K))
        STAGE(5, SUM5(9017.0 / 3168, -355.0 / 33, 46732.0 / 5247, 49.0 / 176, -5103.0 / 18656, K))
        STAGE(6, SUM6(35.0 / 384, 500.0 / 1113, 125.0 / 192, -2187.0 / 6784, 11.0 / 84, K))
        double total = 0.0;
        for (int k = 0; k < n; k++) {
            double sum = SUM6(35.0 / 384 - 5179.0 / 57600, 500.0 / 1113 - 7571.0 / 16695, 125.0 / 192 - 393.0 / 640,
                              -2187.0 / 6784 + 92097.0 / 339200, 11.0 / 84 - 187.0 / 2100, K);
            double error = h * fma(-1.0 / 40, K[6][k], sum);
            double x = error / fma(tol, fmax(fabs(y[k]), fabs(z[k])), tol);
            total = fma(x, x, total);
        }
        double error = sqrt(total / n);
        double factor = error == 0.0 ? 10.0 : 0.9 * pow(error, -0.2);
        if (error <= 1.0) {
            accepted++;
            for (int k = 0; k < n; k++) {
                y[k] = z[k];
                K[0][k] = K[6][k];
            }
            if (is_last)
                break;
            double increment = h + t_low, t_new = t + increment;
            t_low = increment - (t_new - t);
            t = t_new;
            factor = fmin(10.0, fmax(0.2, factor));
            h *= was_rejected ? fmin(factor, 1.0) : factor;
            was_rejected = 0;
        } else {
            rejected++;
            was_rejected = 1;
            h *= fmax(0.2, factor);
        }
    }
    for (int k = 0; k < n; k++)
        end[k] = y[k];
    counts[0] = accepted;
    counts[1] = rejected;
    counts[2] = 1 + 6 * (accepted + rejected);
}

#define DOPRI5(problem, n)                                                                                             \
    void dopri5_##problem(const double *start, double t_end, double h, double tol, double *end, int64_t *counts)      \
    {                                                                                                                  \
        dopri5(problem, n, start, t_end, h, tol, end, counts);                                                         \
    }

DOPRI5(lorenz, 3)
DOPRI5(arenstorf, 4)
DOPRI5(pleiades, 28)

/* Accelerations of the fixed-step problems, as in orbits.py. */

FIELD void henon_heiles(const double *q, double *a)
{
    a[0] = fma(-(2.0 * q[0]), q[1], -q[0]);
    a[1] = fma(q[1], q[1], fma(-q[0], q[0], -q[1]));
}

#define G 2.95912208286e-4
static const double GM[6] = {
    G * 1.00000597682,      G * 0.000954786104043,  G * 0.000285583733151,
    G * 0.0000437273164546, G * 0.0000517759138449, G * (1.0 / 1.3e8),
};

FIELD void outer_planets(const double *q, double *a)
{
    for (int k = 0; k < 18; k++)
        a[k] = 0.0;
    for (int i = 1; i < 6; i++)
        for (int j = 0; j < i; j++) {
            double dx = q[3 * j] - q[3 * i], dy = q[3 * j + 1] - q[3 * i + 1], dz = q[3 * j + 2] - q[3 * i + 2];
            double r2 = fma(dz, dz, fma(dx, dx, dy * dy));
            double w = 1.0 / (r2 * sqrt(r2));
            double to_j = GM[j] * w, to_i = GM[i] * w;
            a[3 * i] = fma(to_j, dx, a[3 * i]);
            a[3 * i + 1] = fma(to_j, dy, a[3 * i + 1]);
            a[3 * i + 2] = fma(to_j, dz, a[3 * i + 2]);
            a[3 * j] = fma(-to_i, dx, a[3 * j]);
            a[3 * j + 1] = fma(-to_i, dy, a[3 * j + 1]);
            a[3 * j + 2] = fma(-to_i, dz, a[3 * j + 2]);
        }
}

/* Kick-drift-kick with fractions b_1, a_1, b_2, ..., a_m, b_(m+1); the last force of a step is the first of the next. */

#define MOVE(x, w, slope)                                                                                              \
    for (int k = 0; k < n; k++)                                                                                        \
        x[k] = fma(w, slope[k], x[k]);

INLINE void splitting(void (*f)(const double *, double *), const int n, const double *kicks, const double *drifts,
                      const int m, const double *start, double h, int64_t steps, double *end)
{
    double q[n], v[n], a[n];
    for (int k = 0; k < n; k++) {
        q[k] = start[k];
        v[k] = start[n + k];
    }
    f(q, a);
    for (int64_t step = 0; step < steps; step++) {
        MOVE(v, kicks[0] * h, a)
        for (int i = 0; i < m; i++) {
            MOVE(q, drifts[i] * h, v)
            f(q, a);
            MOVE(v, kicks[i + 1] * h, a)
        }
    }
    for (int k = 0; k < n; k++) {
        end[k] = q[k];
        end[n + k] = v[k];
    }
}

#define G1 1.3512071919596578
#define G0 (1.0 - 2.0 * G1)
static const double VERLET_KICKS[] = {0.5, 0.5}, VERLET_DRIFTS[] = {1.0};
static const double YOSHIDA_KICKS[] = {G1 / 2, (G1 + G0) / 2, (G0 + G1) / 2, G1 / 2}, YOSHIDA_DRIFTS[] = {G1, G0, G1};

#define SPLITTING(name, problem, n, kicks, drifts, m)                                                                  \
    void name##_##problem(const double *start, double h, int64_t steps, double *end)                                  \
    {                                                                                                                  \
        splitting(problem, n, kicks, drifts, m, start, h, steps, end);                                                 \
    }

SPLITTING(leapfrog, henon_heiles, 2, VERLET_KICKS, VERLET_DRIFTS, 1)
SPLITTING(yoshida4, henon_heiles, 2, YOSHIDA_KICKS, YOSHIDA_DRIFTS, 3)
SPLITTING(leapfrog, outer_planets, 18, VERLET_KICKS, VERLET_DRIFTS, 1)
SPLITTING(yoshida4, outer_planets, 18, YOSHIDA_KICKS, YOSHIDA_DRIFTS, 3)
