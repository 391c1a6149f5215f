#define KERNELS avx512_kernels
#define KERNELS_NAME "avx512"
#include "kernels.inc"
