#include "gguf_parts.hpp"

#include <algorithm>
#include <set>
#include <string_view>

#include "baton/base/limits.hpp"
#include "baton/base/split_name.hpp"
#include "layout_check.hpp"

namespace baton::model {
namespace {

constexpr uint64_t kPartsMax = 4096;

/// Of how many files this one is a part.
Expected<uint64_t> parts_of(const GgufFile& file) {
    if (!file.has("split.count")) return uint64_t{1};
    BATON_TRY_ASSIGN(const uint64_t parts, file.get_uint("split.count"));
    if (parts > kPartsMax)
        return fail(ErrorCode::kCorrupt, "GGUF split.count " + std::to_string(parts) + " is too large");
    return std::max<uint64_t>(parts, 1);
}

Expected<GgufFile> open_part(const SplitName& name, uint32_t number) {
    const std::string path = name.part(number);
    const std::string file = path.substr(path.rfind('/') + 1);
    auto part = GgufFile::open(path);
    if (!part && part.error().code == ErrorCode::kNotFound)
        return fail(ErrorCode::kNotFound, "part " + std::to_string(number) + " of " + std::to_string(name.count) + " of the GGUF is missing: " + file);
    if (!part) return fail(part.error().code, file + ": " + part.error().message);
    BATON_TRY_ASSIGN(const uint64_t parts, parts_of(*part));
    BATON_TRY_ASSIGN(const uint64_t index, part->get_uint("split.no"));
    if (parts != name.count || index + 1 != number)
        return fail(ErrorCode::kCorrupt, file + " says that it is part " + std::to_string(index + 1) + " of " + std::to_string(parts));
    return part;
}

/// No tensor twice, and as many as the first part announces.
Expected<void> check_tensors(const std::vector<GgufFile>& parts) {
    std::set<std::string_view> names;
    for (const GgufFile& part : parts)
        for (const StoredTensor& t : part.tensors())
            if (!names.insert(t.name).second)
                return fail(ErrorCode::kCorrupt, "GGUF tensor '" + printable(t.name) + "' is in two parts");
    if (names.size() > limits::kModelTensorsMax) return fail(ErrorCode::kCorrupt, "the GGUF's parts have too many tensors");
    if (!parts.front().has("split.tensors.count")) return {};
    BATON_TRY_ASSIGN(const uint64_t announced, parts.front().get_uint("split.tensors.count"));
    if (announced == names.size()) return {};
    return fail(ErrorCode::kCorrupt, "the GGUF's parts have " + std::to_string(names.size()) + " tensors, not " + std::to_string(announced));
}

}  // namespace

Expected<std::vector<GgufFile>> open_gguf_parts(const std::string& path, Weights weights) {
    std::vector<GgufFile> out;
    BATON_TRY_ASSIGN(GgufFile file, GgufFile::open(path));
    BATON_TRY_ASSIGN(const uint64_t parts, parts_of(file));
    if (parts == 1) {
        out.push_back(std::move(file));
        return out;
    }
    const auto name = parse_split_name(path);
    if (!name || name->count != parts)
        return fail(ErrorCode::kInvalidArgument, "a GGUF in " + std::to_string(parts) + " files is found by its parts' names, NAME-00001-of-" +
                                                     SplitName{"", 1, static_cast<uint32_t>(parts)}.part(1).substr(10, 5) + ".gguf and so on");
    for (uint32_t number = 1; number <= name->count; ++number) {
        BATON_TRY_ASSIGN(GgufFile part, open_part(*name, number));
        out.push_back(std::move(part));
        if (weights == Weights::kAbsent) return out;
    }
    BATON_TRY(check_tensors(out));
    return out;
}

}  // namespace baton::model
