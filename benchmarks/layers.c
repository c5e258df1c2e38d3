/* Residual layers y + h tanh(K y + b) forward and back: gradients of half the squared end state.  Rows are features. */
#include <math.h>
#include <stdint.h>
#include <string.h>

static void product(const double *K, const double *y, double *z, int64_t m, int64_t batch, int transposed) {
    for (int64_t i = 0; i < m; i++) {
        double *restrict out = z + i * batch;
        memset(out, 0, batch * sizeof(double));
        for (int64_t j = 0; j < m; j++) {
            const double w = transposed ? K[j * m + i] : K[i * m + j];
            const double *restrict row = y + j * batch;
            for (int64_t l = 0; l < batch; l++) out[l] += w * row[l];
        }
    }
}

void residual(int64_t n, int64_t m, int64_t batch, double h, const double *K, const double *b, double *states,
              double *values, double *K_bar, double *b_bar, double *bar, double *g) {
    const int64_t size = m * batch;
    for (int64_t k = 0; k < n; k++) {
        const double *y = states + k * size;
        double *z = values + k * size, *next = states + (k + 1) * size;
        product(K + k * m * m, y, z, m, batch, 0);
        for (int64_t i = 0; i < m; i++)
            for (int64_t l = 0; l < batch; l++) {
                z[i * batch + l] = tanh(z[i * batch + l] + b[k * m + i]);
                next[i * batch + l] = y[i * batch + l] + h * z[i * batch + l];
            }
    }
    memcpy(bar, states + n * size, size * sizeof(double));
    for (int64_t k = n - 1; k >= 0; k--) {
        const double *y = states + k * size, *z = values + k * size;
        for (int64_t i = 0; i < size; i++) g[i] = h * bar[i] * (1 - z[i] * z[i]);
        for (int64_t i = 0; i < m; i++) {
            double total = 0;
            for (int64_t l = 0; l < batch; l++) total += g[i * batch + l];
            b_bar[k * m + i] = total;
            for (int64_t j = 0; j < m; j++) {
                double dot = 0;
                for (int64_t l = 0; l < batch; l++) dot += g[i * batch + l] * y[j * batch + l];
                K_bar[(k * m + i) * m + j] = dot;
            }
        }
        for (int64_t j = 0; j < m; j++)
            for (int64_t i = 0; i < m; i++) {
                const double w = K[(k * m + i) * m + j];
                for (int64_t l = 0; l < batch; l++) bar[j * batch + l] += w * g[i * batch + l];
            }
    }
}
