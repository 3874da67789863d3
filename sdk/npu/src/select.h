// select.h: what npu_v3_ternary shares with npu_v3_select.
#pragma once
#include "sim.h"

namespace npu {

// out = cond ? b : c; an absent b or c is the scalar s_b or s_c. `names` of cond, b and c, for the error texts.
npu_status_t select(npu_stream_t stream, const char* function, const char* const names[3], const npu_tensor_t* cond,
                    const npu_tensor_t* b, const npu_tensor_t* c, npu_scalar_t s_b, npu_scalar_t s_c,
                    const npu_tensor_t* out);

}  // namespace npu
