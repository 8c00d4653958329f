#pragma once

#include <cstddef>
#include <cstdint>

#include "backend/cuda/common.hpp"

namespace baton::backend::cuda {

/// Rounds `n` values to the nearest of the type (to even between two).
void to_elem(Elem elem, const float* in, size_t n, uint16_t* out);

}  // namespace baton::backend::cuda
