#define KERNELS avx2_kernels
#define KERNELS_NAME "avx2"
#include "kernels.inc"
