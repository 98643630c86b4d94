#define IBID_KERNELS kKernelsSse2
#include "worker/backend/kernels_body.h"
