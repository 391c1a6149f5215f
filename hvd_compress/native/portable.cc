#define KERNELS portable_kernels
#define KERNELS_NAME "portable"
#include "kernels.inc"
