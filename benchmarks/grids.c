/* Steps of equations on a periodic plane with loops by hand: the first and last columns are written out, so that the
 * loop in the middle is contiguous.  Compiled by pdes.py. */
#include <stdint.h>
#include <string.h>

#define ROW(f, i) ((f) + ((i) + n) % n * n)

void heat(double *restrict u, double *restrict v, int64_t n, int64_t steps, double r)
{
    for (int64_t s = 0; s < steps; s++) {
        for (int64_t i = 0; i < n; i++) {
            const double *a = ROW(u, i - 1), *m = ROW(u, i), *b = ROW(u, i + 1);
            double *o = v + i * n;
            o[0] = m[0] + r * (a[0] + b[0] + m[n - 1] + m[1] - 4 * m[0]);
            for (int64_t j = 1; j < n - 1; j++)
                o[j] = m[j] + r * (a[j] + b[j] + m[j - 1] + m[j + 1] - 4 * m[j]);
            o[n - 1] = m[n - 1] + r * (a[n - 1] + b[n - 1] + m[n - 2] + m[0] - 4 * m[n - 1]);
        }
        double *t = u;
        u = v;
        v = t;
    }
}
