#include "baton/model/safetensors_file.hpp"

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "baton/base/limits.hpp"
#include "json.hpp"
#include "layout_check.hpp"

namespace baton::model {
namespace {

using tensor::DType;

struct FileType {
    const char* name;
    uint32_t bytes;
    std::optional<DType> dtype;
};
constexpr FileType kFileTypes[] = {
    {"F32", 4, DType::kF32}, {"F16", 2, DType::kF16}, {"BF16", 2, DType::kBF16},
    {"F64", 8, {}},          {"I64", 8, {}},          {"I32", 4, {}},
    {"I16", 2, {}},          {"I8", 1, {}},           {"U64", 8, {}},
    {"U32", 4, {}},          {"U16", 2, {}},          {"U8", 1, {}},
    {"BOOL", 1, {}},         {"F8_E4M3", 1, {}},      {"F8_E5M2", 1, {}},
};

constexpr size_t kShardsMax = 1024;
constexpr size_t kTensorNameBytesMax = 512;

struct Entry {
    std::string name;
    std::string dtype;
    std::vector<uint64_t> shape;
    std::vector<uint64_t> offsets;
    bool has_dtype = false, has_shape = false, has_offsets = false;
};

/// Accepts exactly the header's schema, as a stream: {"__metadata__": {string: string}, NAME:
/// {"dtype": string, "shape": [n…], "data_offsets": [begin, end]}…}. Anything else stops the parse
/// with `error`.
class HeaderReader final : public nlohmann::json_sax<Json> {
  public:
    std::vector<Entry> entries;
    std::string error;

    bool null() override { return refuse("null"); }
    bool boolean(bool) override { return refuse("true or false"); }
    bool number_integer(number_integer_t) override { return refuse("a negative number"); }
    bool number_float(number_float_t, const string_t&) override { return refuse("a fraction"); }
    bool binary(binary_t&) override { return refuse("binary data"); }

    bool number_unsigned(number_unsigned_t v) override {
        if (state_ == State::kShape) {
            if (entry().shape.size() >= limits::kTensorDimsMax)
                return stop("has too many dimensions");
            entry().shape.push_back(v);
            return true;
        }
        if (state_ == State::kOffsets) {
            if (entry().offsets.size() >= 2) return stop("has more than two data_offsets");
            entry().offsets.push_back(v);
            return true;
        }
        return refuse("a number");
    }

    bool string(string_t& v) override {
        if (state_ == State::kMetadata) return true;
        if (state_ != State::kEntry || key_ != "dtype") return refuse("a string");
        entry().dtype = v;
        return true;
    }

    bool start_object(std::size_t) override {
        if (state_ == State::kStart) {
            state_ = State::kRoot;
            return true;
        }
        if (state_ != State::kRoot) return refuse("an object");
        if (key_ == "__metadata__") {
            state_ = State::kMetadata;
            return true;
        }
        if (entries.size() >= limits::kModelTensorsMax) return stop("is one too many");
        entries.push_back({});
        entry().name = key_;
        state_ = State::kEntry;
        return true;
    }

    bool key(string_t& v) override {
        key_ = v;
        if (state_ == State::kRoot) {
            if (v.empty() || v.size() > kTensorNameBytesMax) return stop("has no usable name");
            if (!names_.insert(v).second) return stop("is there twice");
            return true;
        }
        if (state_ == State::kMetadata)
            return metadata_.insert(v).second || stop("is there twice in __metadata__");
        bool& seen = v == "dtype"   ? entry().has_dtype
                     : v == "shape" ? entry().has_shape
                                    : entry().has_offsets;
        if (v != "dtype" && v != "shape" && v != "data_offsets") return stop("is an unknown field");
        if (seen) return stop("is there twice in one tensor");
        return seen = true;
    }

    bool end_object() override {
        if (state_ == State::kEntry) {
            const Entry& e = entry();
            if (!e.has_dtype || !e.has_shape || !e.has_offsets || e.offsets.size() != 2) {
                key_ = e.name;
                return stop("lacks dtype, shape or data_offsets");
            }
        }
        state_ = state_ == State::kRoot ? State::kDone : State::kRoot;
        return true;
    }

    bool start_array(std::size_t) override {
        if (state_ != State::kEntry) return refuse("an array");
        if (key_ == "shape") {
            state_ = State::kShape;
        } else if (key_ == "data_offsets") {
            state_ = State::kOffsets;
        } else {
            return refuse("an array");
        }
        return true;
    }

    bool end_array() override {
        state_ = State::kEntry;
        return true;
    }

    bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
        error = "safetensors header is not valid JSON";
        return false;
    }

  private:
    enum class State : uint8_t { kStart, kRoot, kMetadata, kEntry, kShape, kOffsets, kDone };

    Entry& entry() { return entries.back(); }
    bool stop(const char* why) {
        error = "safetensors header: '" + printable(key_) + "' " + why;
        return false;
    }
    bool refuse(const char* what) { return stop((std::string("may not hold ") + what).c_str()); }

    State state_ = State::kStart;
    std::string key_;
    std::set<std::string> names_;
    std::set<std::string> metadata_;
};

Expected<StoredTensor> place(Entry& e, std::span<const std::byte> data) {
    const auto bad = [&](const std::string& why, ErrorCode code = ErrorCode::kCorrupt) {
        return fail(code, "safetensors tensor '" + printable(e.name) + "' " + why);
    };
    const FileType* type = nullptr;
    for (const FileType& t : kFileTypes) {
        if (e.dtype == t.name) type = &t;
    }
    if (type == nullptr)
        return bad("has unknown type " + printable(e.dtype), ErrorCode::kUnsupported);
    const uint64_t begin = e.offsets[0];
    const uint64_t end = e.offsets[1];
    if (begin > end || end > data.size()) return bad("lies outside the file's " + std::to_string(data.size()) + " bytes of data; is it whole?");
    const auto bytes = stored_bytes(e.shape, 1, type->bytes);
    if (!bytes || *bytes != end - begin) return bad("does not have the size of its shape and type");
    return StoredTensor{std::move(e.name), std::move(e.shape), type->dtype, type->name,
                        data.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin))};
}

bool plain_file_name(const std::string& name) {
    constexpr size_t kNameBytesMax = 255;
    return !name.empty() && name.size() <= kNameBytesMax && name[0] != '.' &&
           name.find('/') == std::string::npos && name.find('\0') == std::string::npos;
}

}  // namespace

Expected<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
    BATON_TRY_ASSIGN(Mapping mapping, Mapping::map_file(path));
    BATON_TRY_ASSIGN(SafetensorsFile file, parse(mapping.bytes()));
    file.mapping_ = std::move(mapping);
    return file;
}

Expected<SafetensorsFile> SafetensorsFile::parse(std::span<const std::byte> bytes) {
    uint64_t length = 0;
    if (bytes.size() < sizeof length)
        return fail(ErrorCode::kCorrupt, "safetensors file is too short");
    std::memcpy(&length, bytes.data(), sizeof length);
    if (length > limits::kModelHeaderBytesMax || length > bytes.size() - sizeof length) {
        return fail(ErrorCode::kCorrupt, "safetensors header length does not fit the file");
    }
    SafetensorsFile file;
    file.bytes_ = bytes;
    file.header_bytes_ = sizeof length + static_cast<size_t>(length);
    const auto data = bytes.subspan(file.header_bytes_);
    const auto* text = reinterpret_cast<const char*>(bytes.data() + sizeof length);
    HeaderReader reader;
    if (!Json::sax_parse(text, text + length, &reader)) {
        return fail(ErrorCode::kCorrupt,
                    reader.error.empty() ? "safetensors header is malformed" : reader.error);
    }
    for (Entry& e : reader.entries) {
        BATON_TRY_ASSIGN(StoredTensor t, place(e, data));
        file.tensors_.push_back(std::move(t));
    }
    BATON_TRY(check_tensor_layout(file.tensors_, data, true));
    return file;
}

namespace {

/// Tensor name → shard file name of `index`, checked.
Expected<std::map<std::string, std::string>> read_weight_map(const Json& index) {
    const Json* map = member(index, "weight_map");
    if (map == nullptr || !map->is_object()) {
        return fail(ErrorCode::kCorrupt, "model.safetensors.index.json has no weight_map");
    }
    std::map<std::string, std::string> out;
    for (const auto& [name, shard] : map->items()) {
        if (!shard.is_string() || !plain_file_name(shard.get_ref<const std::string&>())) {
            return fail(ErrorCode::kCorrupt, "model.safetensors.index.json: the shard of '" +
                                                 printable(name) + "' is not a file name");
        }
        out.emplace(name, shard.get<std::string>());
    }
    return out;
}

}  // namespace

Expected<std::vector<SafetensorsFile>> open_safetensors_dir(const std::string& dir) {
    std::vector<SafetensorsFile> out;
    auto text = read_file(dir + "/model.safetensors.index.json", limits::kModelHeaderBytesMax);
    if (!text && text.error().code != ErrorCode::kNotFound) return fail(std::move(text).error());
    if (!text) {
        BATON_TRY_ASSIGN(SafetensorsFile file, SafetensorsFile::open(dir + "/model.safetensors"));
        out.push_back(std::move(file));
        return out;
    }
    BATON_TRY_ASSIGN(const Json index, parse_json(*text, "model.safetensors.index.json"));
    BATON_TRY_ASSIGN(const auto weight_map, read_weight_map(index));
    std::set<std::string> shards;
    for (const auto& [name, shard] : weight_map) shards.insert(shard);
    if (shards.size() > kShardsMax)
        return fail(ErrorCode::kCorrupt, "model.safetensors.index.json: too many shards");
    std::map<std::string, std::string> found;
    for (const std::string& shard : shards) {
        BATON_TRY_ASSIGN(SafetensorsFile file, SafetensorsFile::open(dir + "/" + shard));
        for (const StoredTensor& t : file.tensors()) {
            if (!found.emplace(t.name, shard).second) {
                return fail(ErrorCode::kCorrupt,
                            "tensor '" + printable(t.name) + "' is in two shards");
            }
        }
        out.push_back(std::move(file));
    }
    for (const auto& [name, shard] : weight_map) {
        const auto it = found.find(name);
        if (it == found.end() || it->second != shard) {
            return fail(ErrorCode::kCorrupt,
                        "tensor '" + printable(name) + "' is not in its shard " + printable(shard));
        }
    }
    return out;
}

}  // namespace baton::model
