#include <cstdlib>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace hvd_compress {
namespace {

const Kernels& choose() {
    const char* wish = std::getenv("HVD_COMPRESS_ISA");
    const std::string isa = wish == nullptr ? "" : wish;
#if defined(__x86_64__)
    __builtin_cpu_init();
    // Where there is AVX2, there is F16C, by which not every compiler can ask.
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#else
    const bool avx2 = false, avx512 = false;
#endif
    if (isa == "portable") return portable_kernels;
#if defined(__x86_64__)
    if (avx512 && (isa.empty() || isa == "avx512")) return avx512_kernels;
    if (avx2 && (isa.empty() || isa == "avx2")) return avx2_kernels;
#endif
    if (isa.empty()) return portable_kernels;
    throw std::invalid_argument("HVD_COMPRESS_ISA must be one of this processor's: portable" +
                                std::string(avx2 ? ", avx2" : "") + (avx512 ? ", avx512" : "") + ", got '" + isa + "'");
}

}  // namespace

const Kernels& kernels() {
    static const Kernels& chosen = choose();
    return chosen;
}

}  // namespace hvd_compress
