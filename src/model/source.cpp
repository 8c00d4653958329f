#include "source.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "baton/base/limits.hpp"
#include "baton/model/model.hpp"
#include "layout_check.hpp"

namespace baton::model {
namespace {

namespace fs = std::filesystem;

/// Files of a model directory that are looked at before it counts as a hostile one.
constexpr size_t kDirEntriesMax = 10'000;

struct DirContents {
    bool config = false;
    bool safetensors = false;
    std::vector<std::string> gguf;
};

Expected<DirContents> list_dir(const std::string& path) {
    std::error_code error;
    DirContents out;
    size_t seen = 0;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error)) {
        if (++seen > kDirEntriesMax)
            return fail(ErrorCode::kInvalidArgument, path + " holds too many files");
        const std::string name = it->path().filename().string();
        if (name == "config.json") out.config = true;
        if (name == "model.safetensors" || name == "model.safetensors.index.json")
            out.safetensors = true;
        if (name.ends_with(".gguf")) out.gguf.push_back(it->path().string());
    }
    if (error) return fail(ErrorCode::kIo, "cannot list " + path + ": " + error.message());
    return out;
}

Expected<Source> open_gguf(const std::string& path) {
    Source source;
    source.files = std::make_shared<WeightFiles>();
    BATON_TRY_ASSIGN(GgufFile file, GgufFile::open(path));
    source.files->gguf.emplace(std::move(file));
    const GgufFile& gguf = *source.files->gguf;
    if (gguf.has("split.count")) {
        BATON_TRY_ASSIGN(const uint64_t parts, gguf.get_uint("split.count"));
        if (parts > 1) return not_supported("GGUF split over several files");
    }
    BATON_TRY_ASSIGN(source.spec, spec_from_gguf(gguf));
    return source;
}

Expected<Source> open_safetensors(const std::string& dir) {
    Source source;
    source.dir = dir;
    source.files = std::make_shared<WeightFiles>();
    BATON_TRY_ASSIGN(source.config, read_file(dir + "/config.json", limits::kModelStringBytesMax));
    BATON_TRY_ASSIGN(const Json config, parse_json(source.config, "config.json"));
    BATON_TRY_ASSIGN(source.spec, spec_from_config(config));
    BATON_TRY_ASSIGN(source.files->shards, open_safetensors_dir(dir));
    return source;
}

}  // namespace

Expected<Source> open_source(const std::string& path) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) return fail(ErrorCode::kNotFound, "model " + path + " does not exist");
    if (fs::is_regular_file(status)) {
        if (path.ends_with(".safetensors")) {
            return fail(ErrorCode::kInvalidArgument,
                        "give the model's directory, not its safetensors file");
        }
        return open_gguf(path);
    }
    if (!fs::is_directory(status)) {
        return fail(ErrorCode::kInvalidArgument,
                    "model " + path + " is neither a file nor a directory");
    }
    BATON_TRY_ASSIGN(const DirContents contents, list_dir(path));
    if (contents.config && contents.safetensors) return open_safetensors(path);
    if (contents.gguf.size() == 1) return open_gguf(contents.gguf[0]);
    if (contents.gguf.size() > 1) {
        return fail(ErrorCode::kInvalidArgument,
                    "model directory " + path + " holds several .gguf files: name one");
    }
    if (contents.config) {
        // Tell an architecture that baton lacks before the weights it may not even have as
        // safetensors.
        BATON_TRY_ASSIGN(const std::string text,
                         read_file(path + "/config.json", limits::kModelStringBytesMax));
        BATON_TRY_ASSIGN(const Json config, parse_json(text, "config.json"));
        BATON_TRY(spec_from_config(config));
    }
    return fail(ErrorCode::kInvalidArgument,
                "model directory " + path +
                    " holds neither config.json with model.safetensors nor a .gguf file");
}

std::vector<const StoredTensor*> Source::tensors() const {
    std::vector<const StoredTensor*> out;
    if (is_gguf()) {
        for (const StoredTensor& t : files->gguf->tensors()) out.push_back(&t);
    }
    for (const SafetensorsFile& shard : files->shards) {
        for (const StoredTensor& t : shard.tensors()) out.push_back(&t);
    }
    return out;
}

Expected<backend::Plan> Source::plan(bool copy) const {
    const Naming naming = is_gguf() ? Naming::kGguf : Naming::kHuggingFace;
    BATON_TRY_ASSIGN(backend::Plan plan,
                     PlanBuilder(spec, naming, tensors(), files->owned, copy).build());
    plan.storage = files;
    return plan;
}

Expected<backend::Plan> load_plan(const std::string& path) {
    BATON_TRY_ASSIGN(const Source source, open_source(path));
    return source.plan(/*copy=*/true);
}

namespace {

void append(std::string& text, std::span<const std::byte> bytes) {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}
void append_number(std::string& text, uint64_t n) {
    text += std::to_string(n) + ";";
}
void append_digest(std::string& text, std::span<const std::byte> bytes) {
    const Digest d = sha256(bytes);
    text.append(reinterpret_cast<const char*>(d.data()), d.size());
}

void append_tensor(std::string& text, const StoredTensor& t) {
    constexpr size_t kSampleBytes = 64;
    append_number(text, t.name.size());
    text += t.name + ";" + t.type_name + ";";
    for (const uint64_t d : t.shape) append_number(text, d);
    const size_t n = std::min(kSampleBytes, t.bytes.size());
    const size_t last = t.bytes.size() - n;
    for (const size_t at : {size_t{0}, last / 2, last}) append(text, t.bytes.subspan(at, n));
}

}  // namespace

Digest model_identity(const Source& source, const std::vector<std::string>& side_files) {
    std::string text = "baton-model-1;";
    const auto file = [&](std::span<const std::byte> header, std::span<const std::byte> bytes) {
        append_digest(text, header);
        append_number(text, bytes.size());
    };
    if (source.is_gguf()) file(source.files->gguf->header(), source.files->gguf->bytes());
    for (const SafetensorsFile& shard : source.files->shards) file(shard.header(), shard.bytes());
    append_digest(text, std::as_bytes(std::span(source.config)));
    for (const std::string& side : side_files) append_digest(text, std::as_bytes(std::span(side)));
    for (const StoredTensor* t : source.tensors()) append_tensor(text, *t);
    return sha256(text);
}

}  // namespace baton::model
