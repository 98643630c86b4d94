#include "worker/backend/kernels.h"

#include <initializer_list>

#include <string.h>

namespace ibid {
namespace {

bool CanRun(const Kernels& kernels) {
  __builtin_cpu_init();
  if (&kernels == &kKernelsAvx512) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  }
  if (&kernels == &kKernelsAvx2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return true;
}

}  // namespace

const Kernels* FindKernels(const char* isa) {
  for (const Kernels* kernels : {&kKernelsSse2, &kKernelsAvx2, &kKernelsAvx512}) {
    if (strcmp(isa, kernels->isa) == 0) return CanRun(*kernels) ? kernels : nullptr;
  }
  return nullptr;
}

const Kernels& KernelsOfThisProcessor() {
  for (const Kernels* kernels : {&kKernelsAvx512, &kKernelsAvx2}) {
    if (CanRun(*kernels)) return *kernels;
  }
  return kKernelsSse2;
}

}  // namespace ibid
