#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/model/stored_tensor.hpp"

namespace baton::model {

/// `text` cut to a readable length with everything but printable ASCII replaced: names in model
/// files are hostile.
[[nodiscard]] std::string printable(std::string_view text);

/// Product of `shape` times `bytes` per `elements`, or nothing when it overflows or the innermost
/// dimension is not whole blocks. A scalar (no dimensions) counts as one element.
[[nodiscard]] std::optional<uint64_t> stored_bytes(const std::vector<uint64_t>& shape,
                                                   uint64_t elements, uint64_t bytes);

/// Refuses (kCorrupt) two tensors of one name and tensors whose bytes overlap. With `packed`, bytes
/// between the first tensor, its neighbours and the end of `data` that belong to no tensor are
/// refused too.
[[nodiscard]] Expected<void> check_tensor_layout(const std::vector<StoredTensor>& tensors,
                                                 std::span<const std::byte> data, bool packed);

}  // namespace baton::model
