#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "baton/tensor/dtype.hpp"

namespace baton::model {

/// A tensor as a model file describes it. The reader has checked that `bytes` lies inside the file,
/// overlaps no other tensor and has exactly the size that shape and type ask for. The bytes belong
/// to the file's mapping.
struct StoredTensor {
    std::string name;
    std::vector<uint64_t> shape;  ///< row-major, outermost dimension first (GGUF's order reversed)
    std::optional<tensor::DType>
        dtype;  ///< nothing: a type whose size is known but which baton does not compute with
    std::string type_name;  ///< as the file's format calls it, for messages
    std::span<const std::byte> bytes;
};

}  // namespace baton::model
