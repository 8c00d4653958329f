#include "source.hpp"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "baton/base/limits.hpp"
#include "baton/base/split_name.hpp"
#include "baton/model/model.hpp"
#include "gguf_parts.hpp"
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

Expected<Source> open_gguf(const std::string& path, Weights weights) {
    Source source;
    source.files = std::make_shared<WeightFiles>();
    BATON_TRY_ASSIGN(source.files->ggufs, open_gguf_parts(path, weights));
    BATON_TRY_ASSIGN(source.spec,
                     spec_from_gguf(source.files->ggufs.front(), source.tensors(), weights));
    return source;
}

/// The one GGUF of a directory: its only such file, or the first of its parts.
Expected<std::string> only_gguf(const std::string& dir, std::vector<std::string> paths) {
    std::sort(paths.begin(), paths.end());
    const auto first = parse_split_name(paths.front());
    const bool one = paths.size() == 1 || (first && std::all_of(paths.begin(), paths.end(), [&](const std::string& p) {
        const auto name = parse_split_name(p);
        return name && name->stem == first->stem && name->count == first->count;
    }));
    if (one) return paths.front();
    return fail(ErrorCode::kInvalidArgument,
                "model directory " + dir + " holds several .gguf files: name one");
}

Expected<Source> open_safetensors(const std::string& dir, Weights weights) {
    Source source;
    source.dir = dir;
    source.files = std::make_shared<WeightFiles>();
    BATON_TRY_ASSIGN(source.config, read_file(dir + "/config.json", limits::kModelStringBytesMax));
    BATON_TRY_ASSIGN(const Json config, parse_json(source.config, "config.json"));
    BATON_TRY_ASSIGN(source.spec, spec_from_config(config));
    if (weights == Weights::kAbsent) return source;
    BATON_TRY_ASSIGN(source.files->shards, open_safetensors_dir(dir));
    return source;
}

}  // namespace

Expected<Source> open_source(const std::string& path, Weights weights) {
    std::error_code error;
    const fs::file_status status = fs::status(path, error);
    if (!fs::exists(status)) return fail(ErrorCode::kNotFound, "model " + path + " does not exist");
    if (fs::is_regular_file(status)) {
        if (path.ends_with(".safetensors")) {
            return fail(ErrorCode::kInvalidArgument,
                        "give the model's directory, not its safetensors file");
        }
        return open_gguf(path, weights);
    }
    if (!fs::is_directory(status)) {
        return fail(ErrorCode::kInvalidArgument,
                    "model " + path + " is neither a file nor a directory");
    }
    BATON_TRY_ASSIGN(const DirContents contents, list_dir(path));
    if (contents.config && (contents.safetensors || weights == Weights::kAbsent))
        return open_safetensors(path, weights);
    if (!contents.gguf.empty()) {
        BATON_TRY_ASSIGN(const std::string file, only_gguf(path, contents.gguf));
        return open_gguf(file, weights);
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
    for (const GgufFile& part : files->ggufs) {
        for (const StoredTensor& t : part.tensors()) out.push_back(&t);
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
    for (const GgufFile& part : source.files->ggufs) file(part.header(), part.bytes());
    for (const SafetensorsFile& shard : source.files->shards) file(shard.header(), shard.bytes());
    append_digest(text, std::as_bytes(std::span(source.config)));
    for (const std::string& side : side_files) append_digest(text, std::as_bytes(std::span(side)));
    for (const StoredTensor* t : source.tensors()) append_tensor(text, *t);
    return sha256(text);
}

}  // namespace baton::model
