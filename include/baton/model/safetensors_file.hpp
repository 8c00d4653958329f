#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/fd.hpp"
#include "baton/model/stored_tensor.hpp"

namespace baton::model {

/// One safetensors file. The header is read by a schema-bound streaming parser (nothing but the
/// format's own nesting is accepted, duplicate keys are refused), each tensor's byte range must
/// equal shape × type, and the ranges must cover the data exactly: no overlap, no gap, no tail.
/// Immutable after open; any thread may read it. Views die with it.
class SafetensorsFile {
  public:
    /// Maps the file at `path` and reads its header. kNotFound, kIo, kCorrupt, or kUnsupported
    /// (unknown type name).
    static Expected<SafetensorsFile> open(const std::string& path);
    /// Reads `bytes`, which outlive the result.
    static Expected<SafetensorsFile> parse(std::span<const std::byte> bytes);

    [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }
    /// The length field and the JSON header, for a digest.
    [[nodiscard]] std::span<const std::byte> header() const { return bytes_.first(header_bytes_); }
    [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  private:
    Mapping mapping_;
    std::span<const std::byte> bytes_;
    size_t header_bytes_ = 0;
    std::vector<StoredTensor> tensors_;
};

/// Opens the weights of a model directory: `model.safetensors.index.json` with its shards where it
/// is there, else `model.safetensors`. Shard names must be plain file names; every tensor the index
/// names must be in the shard it names, and no tensor may be in two shards.
[[nodiscard]] Expected<std::vector<SafetensorsFile>> open_safetensors_dir(const std::string& dir);

}  // namespace baton::model
