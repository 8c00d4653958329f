#pragma once

#include <string>
#include <vector>

#include "baton/model/gguf_file.hpp"
#include "baton/model/model.hpp"

namespace baton::model {

/// Opens the GGUF at `path`: one file, or all the parts of which it is one, in order and checked to
/// be parts of one model. With Weights::kAbsent only the first, which has the metadata. kNotFound
/// names the part that is missing; errors as GgufFile::open.
[[nodiscard]] Expected<std::vector<GgufFile>> open_gguf_parts(const std::string& path, Weights weights);

}  // namespace baton::model
