#define IBID_KERNELS kKernelsAvx512
#include "worker/backend/kernels_body.h"
