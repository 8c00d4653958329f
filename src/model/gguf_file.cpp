#include "baton/model/gguf_file.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "baton/base/limits.hpp"
#include "layout_check.hpp"

namespace baton::model {
namespace {

static_assert(std::endian::native == std::endian::little, "baton runs on little-endian machines");

constexpr uint64_t kKeysMax = 65'536;
constexpr uint64_t kKeyBytesMax = 65'535;
constexpr uint64_t kTensorNameBytesMax = 512;
constexpr uint64_t kAlignmentMax = 1u << 20;
/// Strings of one array that are turned into std::string at once (vocabularies and merges are far
/// smaller).
constexpr uint64_t kStringsMax = 1u << 22;

/// A tensor type of GGUF: all whose block size is known, so that a file's layout can be checked in
/// full.
struct FileType {
    uint32_t id;
    const char* name;
    uint32_t elements;
    uint32_t bytes;
    std::optional<tensor::DType> dtype;
};

using tensor::DType;
constexpr FileType kFileTypes[] = {
    {0, "F32", 1, 4, DType::kF32},
    {1, "F16", 1, 2, DType::kF16},
    {2, "Q4_0", 32, 18, DType::kQ4_0},
    {3, "Q4_1", 32, 20, DType::kQ4_1},
    {6, "Q5_0", 32, 22, DType::kQ5_0},
    {7, "Q5_1", 32, 24, DType::kQ5_1},
    {8, "Q8_0", 32, 34, DType::kQ8_0},
    {10, "Q2_K", 256, 84, {}},
    {11, "Q3_K", 256, 110, {}},
    {12, "Q4_K", 256, 144, DType::kQ4_K},
    {13, "Q5_K", 256, 176, DType::kQ5_K},
    {14, "Q6_K", 256, 210, DType::kQ6_K},
    {15, "Q8_K", 256, 292, {}},
    {16, "IQ2_XXS", 256, 66, {}},
    {17, "IQ2_XS", 256, 74, {}},
    {18, "IQ3_XXS", 256, 98, {}},
    {19, "IQ1_S", 256, 50, {}},
    {20, "IQ4_NL", 32, 18, {}},
    {21, "IQ3_S", 256, 110, {}},
    {22, "IQ2_S", 256, 82, {}},
    {23, "IQ4_XS", 256, 136, {}},
    {24, "I8", 1, 1, {}},
    {25, "I16", 1, 2, {}},
    {26, "I32", 1, 4, {}},
    {27, "I64", 1, 8, {}},
    {28, "F64", 1, 8, {}},
    {29, "IQ1_M", 256, 56, {}},
    {30, "BF16", 1, 2, DType::kBF16},
    {34, "TQ1_0", 256, 54, {}},
    {35, "TQ2_0", 256, 66, {}},
    {39, "MXFP4", 32, 17, {}},
    {40, "NVFP4", 64, 36, {}},
};

const FileType* file_type(uint32_t id) {
    for (const FileType& t : kFileTypes) {
        if (t.id == id) return &t;
    }
    return nullptr;
}

/// Bytes of a fixed-size value; 0 for strings, arrays and unknown types.
size_t fixed_bytes(GgufType t) {
    switch (t) {
        case GgufType::kU8:
        case GgufType::kI8:
        case GgufType::kBool:
            return 1;
        case GgufType::kU16:
        case GgufType::kI16:
            return 2;
        case GgufType::kU32:
        case GgufType::kI32:
        case GgufType::kF32:
            return 4;
        case GgufType::kU64:
        case GgufType::kI64:
        case GgufType::kF64:
            return 8;
        case GgufType::kString:
        case GgufType::kArray:
            return 0;
    }
    return 0;
}

template <class T>
T load(const std::byte* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

/// An integer of any GGUF type, widened; nothing for other types and for u64 values past i64.
std::optional<int64_t> load_integer(GgufType t, const std::byte* p) {
    switch (t) {
        case GgufType::kU8:
            return load<uint8_t>(p);
        case GgufType::kI8:
            return load<int8_t>(p);
        case GgufType::kU16:
            return load<uint16_t>(p);
        case GgufType::kI16:
            return load<int16_t>(p);
        case GgufType::kU32:
            return load<uint32_t>(p);
        case GgufType::kI32:
            return load<int32_t>(p);
        case GgufType::kI64:
            return load<int64_t>(p);
        case GgufType::kU64: {
            const auto v = load<uint64_t>(p);
            if (v > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
            return static_cast<int64_t>(v);
        }
        default:
            return std::nullopt;
    }
}

/// Reads the header front to back; every read says first whether the bytes are there.
class Cursor {
  public:
    explicit Cursor(std::span<const std::byte> bytes) : bytes_(bytes) {}
    [[nodiscard]] size_t position() const { return at_; }
    [[nodiscard]] size_t left() const { return bytes_.size() - at_; }

    [[nodiscard]] Expected<std::span<const std::byte>> take(uint64_t n) {
        if (n > left()) return fail(ErrorCode::kCorrupt, "GGUF file ends inside its header");
        const auto out = bytes_.subspan(at_, static_cast<size_t>(n));
        at_ += static_cast<size_t>(n);
        return out;
    }
    template <class T>
    [[nodiscard]] Expected<T> number() {
        BATON_TRY_ASSIGN(const auto b, take(sizeof(T)));
        return load<T>(b.data());
    }
    [[nodiscard]] Expected<std::string_view> string(uint64_t bytes_max, const char* what) {
        BATON_TRY_ASSIGN(const auto n, number<uint64_t>());
        if (n > bytes_max)
            return fail(ErrorCode::kCorrupt, std::string("GGUF ") + what + " is too long");
        BATON_TRY_ASSIGN(const auto b, take(n));
        return std::string_view(reinterpret_cast<const char*>(b.data()), b.size());
    }

  private:
    std::span<const std::byte> bytes_;
    size_t at_ = 0;
};

}  // namespace

/// Fills a GgufFile from its bytes.
class GgufParser {
  public:
    GgufParser(GgufFile& out, std::span<const std::byte> bytes)
        : out_(out), cursor_(bytes.first(std::min(bytes.size(), limits::kModelHeaderBytesMax))) {
        out_.bytes_ = bytes;
    }

    Expected<void> run() {
        BATON_TRY_ASSIGN(const auto magic, cursor_.take(4));
        if (std::memcmp(magic.data(), "GGUF", 4) != 0) {
            return fail(ErrorCode::kCorrupt, "not a GGUF file: the magic bytes are missing");
        }
        BATON_TRY_ASSIGN(out_.version_, cursor_.number<uint32_t>());
        if (out_.version_ != 0 && (out_.version_ & 0xffffu) == 0) {
            return fail(ErrorCode::kUnsupported, "big-endian GGUF files are not supported");
        }
        if (out_.version_ != 2 && out_.version_ != 3) {
            return fail(ErrorCode::kUnsupported, "GGUF version " + std::to_string(out_.version_) +
                                                     " is not supported (2 and 3 are)");
        }
        BATON_TRY_ASSIGN(const auto tensors, cursor_.number<uint64_t>());
        BATON_TRY_ASSIGN(const auto keys, cursor_.number<uint64_t>());
        // The shortest key-value pair takes 13 bytes, the shortest tensor entry 32.
        if (keys > kKeysMax || keys > cursor_.left() / 13) {
            return fail(ErrorCode::kCorrupt,
                        "GGUF metadata count " + std::to_string(keys) + " is too large");
        }
        if (tensors > limits::kModelTensorsMax || tensors > cursor_.left() / 32) {
            return fail(ErrorCode::kCorrupt,
                        "GGUF tensor count " + std::to_string(tensors) + " is too large");
        }
        for (uint64_t i = 0; i < keys; ++i) BATON_TRY(read_pair());
        BATON_TRY_ASSIGN(const uint64_t alignment, read_alignment());
        return read_tensors(tensors, alignment);
    }

  private:
    Expected<void> read_pair() {
        BATON_TRY_ASSIGN(const auto key, cursor_.string(kKeyBytesMax, "metadata key"));
        if (key.empty()) return fail(ErrorCode::kCorrupt, "GGUF metadata key is empty");
        BATON_TRY_ASSIGN(const auto type, cursor_.number<uint32_t>());
        auto value = read_value(static_cast<GgufType>(type));
        if (!value) {
            Error e = std::move(value).error();
            return fail(e.code, e.message + " (at metadata '" + printable(key) + "')");
        }
        if (!out_.values_.emplace(key, *value).second) {
            return fail(ErrorCode::kCorrupt,
                        "GGUF metadata '" + printable(key) + "' is there twice");
        }
        return {};
    }

    Expected<GgufFile::Value> read_value(GgufType type) {
        if (type == GgufType::kArray) return read_array();
        GgufFile::Value v{type, false, 1, {}};
        if (type == GgufType::kString) {
            BATON_TRY_ASSIGN(const auto text,
                             cursor_.string(limits::kModelStringBytesMax, "string"));
            v.bytes = std::as_bytes(std::span(text.data(), text.size()));
            return v;
        }
        const size_t size = fixed_bytes(type);
        if (size == 0) {
            return fail(
                ErrorCode::kCorrupt,
                "GGUF value type " + std::to_string(static_cast<uint32_t>(type)) + " is unknown");
        }
        BATON_TRY_ASSIGN(v.bytes, cursor_.take(size));
        BATON_TRY(check_bools(v));
        return v;
    }

    Expected<GgufFile::Value> read_array() {
        BATON_TRY_ASSIGN(const auto raw_type, cursor_.number<uint32_t>());
        BATON_TRY_ASSIGN(const auto count, cursor_.number<uint64_t>());
        const auto type = static_cast<GgufType>(raw_type);
        GgufFile::Value v{type, true, count, {}};
        if (type == GgufType::kArray)
            return fail(ErrorCode::kUnsupported, "GGUF arrays of arrays are not supported");
        if (type == GgufType::kString) {
            if (count > cursor_.left() / sizeof(uint64_t)) {
                return fail(ErrorCode::kCorrupt, "GGUF array is longer than the file");
            }
            // Walk a copy of the cursor to learn where the array ends, then take it whole.
            Cursor probe = cursor_;
            for (uint64_t i = 0; i < count; ++i) {
                BATON_TRY_ASSIGN([[maybe_unused]] const auto s,
                                 probe.string(limits::kModelStringBytesMax, "string"));
            }
            BATON_TRY_ASSIGN(v.bytes, cursor_.take(probe.position() - cursor_.position()));
            return v;
        }
        const size_t size = fixed_bytes(type);
        if (size == 0) {
            return fail(ErrorCode::kCorrupt,
                        "GGUF array element type " + std::to_string(raw_type) + " is unknown");
        }
        if (count > cursor_.left() / size)
            return fail(ErrorCode::kCorrupt, "GGUF array is longer than the file");
        BATON_TRY_ASSIGN(v.bytes, cursor_.take(count * size));
        BATON_TRY(check_bools(v));
        return v;
    }

    static Expected<void> check_bools(const GgufFile::Value& v) {
        if (v.type != GgufType::kBool) return {};
        for (const std::byte b : v.bytes) {
            if (std::to_integer<unsigned>(b) > 1)
                return fail(ErrorCode::kCorrupt, "GGUF bool is neither 0 nor 1");
        }
        return {};
    }

    Expected<uint64_t> read_alignment() const {
        if (!out_.has("general.alignment")) return uint64_t{32};
        BATON_TRY_ASSIGN(const uint64_t a, out_.get_uint("general.alignment"));
        if (a < 8 || a > kAlignmentMax || !std::has_single_bit(a)) {
            return fail(ErrorCode::kCorrupt,
                        "GGUF general.alignment " + std::to_string(a) + " is not usable");
        }
        return a;
    }

    struct Entry {
        std::string_view name;
        std::vector<uint64_t> shape;
        const FileType* type = nullptr;
        uint64_t offset = 0;
        uint64_t bytes = 0;
    };

    Expected<Entry> read_entry() {
        Entry e;
        BATON_TRY_ASSIGN(e.name, cursor_.string(kTensorNameBytesMax, "tensor name"));
        const auto bad = [&](const std::string& why, ErrorCode code = ErrorCode::kCorrupt) {
            return fail(code, "GGUF tensor '" + printable(e.name) + "' " + why);
        };
        if (e.name.empty()) return bad("has no name");
        BATON_TRY_ASSIGN(const auto dims, cursor_.number<uint32_t>());
        if (dims == 0 || dims > limits::kTensorDimsMax)
            return bad("has " + std::to_string(dims) + " dimensions");
        e.shape.resize(dims);
        for (uint32_t i = 0; i < dims; ++i) {
            BATON_TRY_ASSIGN(e.shape[dims - 1 - i], cursor_.number<uint64_t>());
            if (e.shape[dims - 1 - i] == 0) return bad("has an empty dimension");
        }
        BATON_TRY_ASSIGN(const auto type, cursor_.number<uint32_t>());
        e.type = file_type(type);
        if (e.type == nullptr) {
            return bad("has type " + std::to_string(type) + ", which is unknown",
                       ErrorCode::kUnsupported);
        }
        BATON_TRY_ASSIGN(e.offset, cursor_.number<uint64_t>());
        const auto bytes = stored_bytes(e.shape, e.type->elements, e.type->bytes);
        if (!bytes) return bad("has a shape that does not fit its type");
        e.bytes = *bytes;
        return e;
    }

    Expected<void> read_tensors(uint64_t count, uint64_t alignment) {
        std::vector<Entry> entries;
        entries.reserve(static_cast<size_t>(count));
        for (uint64_t i = 0; i < count; ++i) {
            BATON_TRY_ASSIGN(Entry e, read_entry());
            entries.push_back(std::move(e));
        }
        out_.header_bytes_ = cursor_.position();
        const size_t start = (cursor_.position() + alignment - 1) / alignment * alignment;
        if (count > 0 && start > out_.bytes_.size()) {
            return fail(ErrorCode::kCorrupt, "GGUF file ends before its tensor data: it has " + std::to_string(out_.bytes_.size()) + " bytes; is it whole?");
        }
        const auto data = out_.bytes_.subspan(std::min(start, out_.bytes_.size()));
        for (Entry& e : entries) {
            if (e.offset % alignment != 0) {
                return fail(ErrorCode::kCorrupt,
                            "GGUF tensor '" + printable(e.name) + "' is not aligned");
            }
            if (e.offset > data.size() || e.bytes > data.size() - e.offset) {
                return fail(ErrorCode::kCorrupt,
                            "GGUF tensor '" + printable(e.name) + "' lies outside the file of " + std::to_string(out_.bytes_.size()) + " bytes; is it whole?");
            }
            out_.tensors_.push_back(
                {std::string(e.name), std::move(e.shape), e.type->dtype, e.type->name,
                 data.subspan(static_cast<size_t>(e.offset), static_cast<size_t>(e.bytes))});
        }
        return check_tensor_layout(out_.tensors_, data, false);
    }

    GgufFile& out_;
    Cursor cursor_;
};

Expected<GgufFile> GgufFile::open(const std::string& path) {
    BATON_TRY_ASSIGN(Mapping mapping, Mapping::map_file(path));
    BATON_TRY_ASSIGN(GgufFile file, parse(mapping.bytes()));
    file.mapping_ = std::move(mapping);
    return file;
}

Expected<GgufFile> GgufFile::parse(std::span<const std::byte> bytes) {
    GgufFile file;
    BATON_TRY(GgufParser(file, bytes).run());
    return file;
}

bool GgufFile::is_array(std::string_view key) const {
    const auto it = values_.find(key);
    return it != values_.end() && it->second.array;
}

Expected<const GgufFile::Value*> GgufFile::find(std::string_view key, bool array) const {
    const auto it = values_.find(key);
    if (it == values_.end())
        return fail(ErrorCode::kCorrupt, "GGUF metadata '" + printable(key) + "' is missing");
    if (it->second.array != array) {
        return fail(ErrorCode::kCorrupt, "GGUF metadata '" + printable(key) + "' is " +
                                             (array ? "not an array" : "an array"));
    }
    return &it->second;
}

namespace {
tl::unexpected<Error> wrong_type(std::string_view key, const char* wanted) {
    return fail(ErrorCode::kCorrupt, "GGUF metadata '" + printable(key) + "' is not " + wanted);
}
}  // namespace

Expected<uint64_t> GgufFile::get_uint(std::string_view key) const {
    BATON_TRY_ASSIGN(const Value* v, find(key, false));
    const auto n = load_integer(v->type, v->bytes.data());
    if (!n || *n < 0) return wrong_type(key, "a non-negative integer");
    return static_cast<uint64_t>(*n);
}

Expected<double> GgufFile::get_float(std::string_view key) const {
    BATON_TRY_ASSIGN(const Value* v, find(key, false));
    double value = 0;
    if (v->type == GgufType::kF32) {
        value = static_cast<double>(load<float>(v->bytes.data()));
    } else if (v->type == GgufType::kF64) {
        value = load<double>(v->bytes.data());
    } else {
        return wrong_type(key, "a floating-point number");
    }
    if (!std::isfinite(value)) return wrong_type(key, "a finite number");
    return value;
}

Expected<bool> GgufFile::get_bool(std::string_view key) const {
    BATON_TRY_ASSIGN(const Value* v, find(key, false));
    if (v->type != GgufType::kBool) return wrong_type(key, "a bool");
    return v->bytes[0] != std::byte{0};
}

Expected<std::string_view> GgufFile::get_string(std::string_view key) const {
    BATON_TRY_ASSIGN(const Value* v, find(key, false));
    if (v->type != GgufType::kString) return wrong_type(key, "a string");
    return std::string_view(reinterpret_cast<const char*>(v->bytes.data()), v->bytes.size());
}

Expected<std::vector<std::string>> GgufFile::get_strings(std::string_view key) const {
    BATON_TRY_ASSIGN(const Value* v, find(key, true));
    if (v->type != GgufType::kString) return wrong_type(key, "an array of strings");
    if (v->count > kStringsMax) return wrong_type(key, "an array of a usable length");
    std::vector<std::string> out;
    out.reserve(static_cast<size_t>(v->count));
    Cursor cursor(v->bytes);
    for (uint64_t i = 0; i < v->count; ++i) {
        BATON_TRY_ASSIGN(const auto s, cursor.string(limits::kModelStringBytesMax, "string"));
        out.emplace_back(s);
    }
    return out;
}

Expected<std::vector<int32_t>> GgufFile::get_ints(std::string_view key) const {
    BATON_TRY_ASSIGN(const Value* v, find(key, true));
    const size_t size = fixed_bytes(v->type);
    std::vector<int32_t> out;
    if (size == 0 || size > 4) return wrong_type(key, "an array of 32-bit integers");
    out.reserve(static_cast<size_t>(v->count));
    for (uint64_t i = 0; i < v->count; ++i) {
        const auto n = load_integer(v->type, v->bytes.data() + i * size);
        if (!n || *n > INT32_MAX || *n < INT32_MIN)
            return wrong_type(key, "an array of 32-bit integers");
        out.push_back(static_cast<int32_t>(*n));
    }
    return out;
}

Expected<std::vector<float>> GgufFile::get_floats(std::string_view key) const {
    BATON_TRY_ASSIGN(const Value* v, find(key, true));
    if (v->type != GgufType::kF32) return wrong_type(key, "an array of f32");
    std::vector<float> out(static_cast<size_t>(v->count));
    std::memcpy(out.data(), v->bytes.data(), out.size() * sizeof(float));
    return out;
}

}  // namespace baton::model
