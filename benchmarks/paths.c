/* The limit for paths of SDEs: Euler-Maruyama with the generator of stepnet, 16 paths side by side in vectors.
 *
 * A draw of Philox4x32-10 gives two normals by Box-Muller, of path i and path i + 8; numbers of 64 steps are drawn
 * together.  Compiled by c_loops.py with -O3 -march=native, and -ffp-contract=off for the arithmetic of the kernels.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#define HALF 8
#define CHUNK 64
#define INCREMENT 1 /* the stream */
typedef double vec __attribute__((vector_size(8 * HALF)));
typedef uint64_t word __attribute__((vector_size(8 * HALF)));

static const uint64_t LOW = 0xFFFFFFFF, MANTISSA = (1ull << 52) - 1, ROOT_HALF = 0x3FE6A09E667F3BCD;
static const uint64_t ONE = 0x3FFull << 52, QUARTER = 0x3FDull << 52, POWER_52 = 0x433ull << 52;
static const double TWICE_LN2 = 0x1.62e42fefa39efp+0;

static inline vec root(vec x)
{
    for (int l = 0; l < HALF; l++)
        x[l] = sqrt(x[l]);
    return x;
}

static inline void philox(word c0, word c1, word c2, word c3, uint64_t seed, word *first, word *second)
{
    uint64_t k0 = seed & LOW, k1 = seed >> 32;
    for (int i = 0; i < 10; i++) {
        word p0 = 0xD2511F53 * (c0 & LOW), p1 = 0xCD9E8D57 * (c2 & LOW);
        c0 = (p1 >> 32) ^ c1 ^ k0;
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ k1;
        c3 = p0;
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    *first = (c0 << 32) | (c1 & LOW);
    *second = (c2 << 32) | (c3 & LOW);
}

static inline void normals(word first, word second, vec *x, vec *y)
{
    vec u = (vec)((first >> 12) | ONE) - (1.0 - 0x1p-53);
    word bits = (word)u + (ONE - ROOT_HALF);
    vec m = (vec)((bits & MANTISSA) + ROOT_HALF);
    vec e = (vec)((bits >> 52) | POWER_52) - (0x1p52 + 1023.0);
    vec s = (1.0 - m) / (1.0 + m), z = s * s;
    vec p = 2 * 0x1.2b584aae78a57p-3 * z + 2 * 0x1.39fe606542ddep-3;
    p = p * z + 2 * 0x1.7462b4ab2ef6bp-3;
    p = p * z + 2 * 0x1.c71c62e5800a1p-3;
    p = p * z + 2 * 0x1.2492492df148dp-2;
    p = p * z + 2 * 0x1.99999999952e2p-2;
    p = p * z + 2 * 0x1.5555555555558p-1;
    vec r = root(s * (4.0 + z * p) - e * TWICE_LN2);
    vec q = (vec)(((second >> 10) & MANTISSA) | 1 | QUARTER) - 0.375;
    z = q * q;
    vec a = 0x1.e3f38399551bfp+1 * z - 0x1.e30071afc3e59p+3, b = -0x1.b2f3eb054afcdp+0 * z + 0x1.f9ce245cada0bp+2;
    a = a * z + 0x1.50782fda12d96p+5, b = b * z - 0x1.a6d1eef479be1p+4;
    a = a * z - 0x1.32d2cce2e5b19p+6, b = b * z + 0x1.e1f5068688d5bp+5;
    a = a * z + 0x1.466bc677587f8p+6, b = b * z - 0x1.55d3c7e3cb241p+6;
    a = a * z - 0x1.4abbce625be41p+5, b = b * z + 0x1.03c1f081b5ac0p+6;
    a = a * z + 0x1.921fb54442d18p+2, b = b * z - 0x1.3bd3cc9be45dep+4;
    word small = (word)(r * (q * a)), large = (word)(r * (1.0 + z * b)) ^ (second & (1ull << 63));
    word is_exchanged = (word)((second & (1ull << 62)) != 0);
    *x = (vec)((small & is_exchanged) | (large & ~is_exchanged));
    *y = (vec)((large & is_exchanged) | (small & ~is_exchanged));
}

/* Increments of one component of 16 paths in `count` cells, rounded to multiples of the quantum. */
static void draw(uint64_t seed, int64_t group, int64_t cell, int count, int component, double scale, double rounder,
                 vec (*out)[2])
{
    const word zero = {0}, lanes = {0, 1, 2, 3, 4, 5, 6, 7};
    word pair = lanes + (uint64_t)(HALF * group);
    word last = (pair >> 32) | ((uint64_t)component << 8) | ((uint64_t)INCREMENT << 24);
    word first[CHUNK], second[CHUNK];
    for (int s = 0; s < count; s++)
        philox(zero, zero + (uint64_t)(cell + s), pair, last, seed, &first[s], &second[s]);
    for (int s = 0; s < count; s++) {
        vec x, y;
        normals(first[s], second[s], &x, &y);
        out[s][0] = (scale * x + rounder) - rounder;
        out[s][1] = (scale * y + rounder) - rounder;
    }
}

static int least(int64_t a, int64_t b) { return a < b ? a : b; }

#define PATHS(NAME, DIMENSION, STEP)                                                                                   \
    void NAME(const double *start, const double *p, uint64_t seed, int64_t paths, int64_t steps, double h,             \
              double rounder, double *ends)                                                                            \
    {                                                                                                                  \
        vec dW[DIMENSION][CHUNK][2], state[DIMENSION][2];                                                              \
        for (int64_t group = 0; group < paths / (2 * HALF); group++) {                                                 \
            for (int i = 0; i < DIMENSION; i++)                                                                        \
                for (int l = 0; l < 2 * HALF; l++)                                                                     \
                    state[i][l / HALF][l % HALF] = start[(2 * HALF * group + l) * DIMENSION + i];                      \
            for (int64_t n = 0; n < steps; n += CHUNK) {                                                               \
                int count = least(CHUNK, steps - n);                                                                   \
                for (int i = 0; i < DIMENSION; i++)                                                                    \
                    draw(seed, group, n, count, i, sqrt(h), rounder, dW[i]);                                           \
                for (int i = 0; i < DIMENSION; i++)                                                                    \
                    for (int half = 0; half < 2; half++) {                                                             \
                        vec y = state[i][half];                                                                        \
                        for (int s = 0; s < count; s++)                                                                \
                            y = STEP(y, p, h, dW[i][s][half]);                                                         \
                        state[i][half] = y;                                                                            \
                    }                                                                                                  \
            }                                                                                                          \
            for (int i = 0; i < DIMENSION; i++)                                                                        \
                for (int l = 0; l < 2 * HALF; l++)                                                                     \
                    ends[(2 * HALF * group + l) * DIMENSION + i] = state[i][l / HALF][l % HALF];                       \
        }                                                                                                              \
    }

#define GBM(y, p, h, dW) (y + h * (p[0] * y) + (p[1] * y) * dW)
#define OU(y, p, h, dW) (y + h * (p[0] * (p[1] - y)) + p[2] * dW)

PATHS(gbm, 1, GBM)
PATHS(ou, 10, OU)
