#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "baton/base/error.hpp"
#include "baton/base/fd.hpp"
#include "baton/model/stored_tensor.hpp"

namespace baton::model {

/// Value types of GGUF metadata, numbered as in the file.
enum class GgufType : uint32_t {
    kU8 = 0,
    kI8 = 1,
    kU16 = 2,
    kI16 = 3,
    kU32 = 4,
    kI32 = 5,
    kF32 = 6,
    kBool = 7,
    kString = 8,
    kArray = 9,
    kU64 = 10,
    kI64 = 11,
    kF64 = 12,
};

/// A GGUF file, version 2 or 3, little endian. Reading checks everything a hostile file could lie
/// about before it is used: counts against the bytes that are there, string and key lengths,
/// duplicate keys and names, value types, dimension products, alignment, and that no tensor
/// overlaps another or leaves the file. Immutable after open; any thread may read it. Views and
/// string_views point into the file and die with it.
class GgufFile {
  public:
    /// Maps the file at `path` and reads its header. kNotFound, kIo, kCorrupt (malformed) or
    /// kUnsupported (a version, byte order or type that baton does not read), with the field that
    /// is to blame.
    static Expected<GgufFile> open(const std::string& path);
    /// Reads `bytes`, which outlive the result.
    static Expected<GgufFile> parse(std::span<const std::byte> bytes);

    [[nodiscard]] uint32_t version() const { return version_; }
    [[nodiscard]] const std::vector<StoredTensor>& tensors() const { return tensors_; }
    /// Everything before the tensor data, for a digest.
    [[nodiscard]] std::span<const std::byte> header() const { return bytes_.first(header_bytes_); }
    [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

    [[nodiscard]] bool has(std::string_view key) const {
        return values_.find(key) != values_.end();
    }
    /// True when the value of `key` is an array.
    [[nodiscard]] bool is_array(std::string_view key) const;
    /// A non-negative integer of any integer type. kCorrupt when missing, negative or of another
    /// type.
    [[nodiscard]] Expected<uint64_t> get_uint(std::string_view key) const;
    /// f32 or f64.
    [[nodiscard]] Expected<double> get_float(std::string_view key) const;
    [[nodiscard]] Expected<bool> get_bool(std::string_view key) const;
    [[nodiscard]] Expected<std::string_view> get_string(std::string_view key) const;
    [[nodiscard]] Expected<std::vector<std::string>> get_strings(std::string_view key) const;
    /// An array of a 32-bit or smaller integer type whose values fit i32.
    [[nodiscard]] Expected<std::vector<int32_t>> get_ints(std::string_view key) const;
    /// An array of f32.
    [[nodiscard]] Expected<std::vector<float>> get_floats(std::string_view key) const;

  private:
    friend class GgufParser;
    struct Value {
        GgufType type = GgufType::kU8;  ///< of the value, or of the elements of an array
        bool array = false;
        uint64_t count = 1;
        std::span<const std::byte>
            bytes;  ///< of a string: its text; of a string array: (u64 length, text)…
    };
    [[nodiscard]] Expected<const Value*> find(std::string_view key, bool array) const;

    Mapping mapping_;
    std::span<const std::byte> bytes_;
    size_t header_bytes_ = 0;
    uint32_t version_ = 0;
    std::map<std::string, Value, std::less<>> values_;
    std::vector<StoredTensor> tensors_;
};

}  // namespace baton::model
