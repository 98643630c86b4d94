#define IBID_KERNELS kKernelsAvx2
#include "worker/backend/kernels_body.h"
