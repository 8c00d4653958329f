#include "json.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmath>
#include <set>
#include <vector>

#include "baton/base/fd.hpp"
#include "layout_check.hpp"

namespace baton::model {
namespace {

constexpr int kDepthMax = 64;

tl::unexpected<Error> wrong(const char* key, const char* wanted) {
    return fail(ErrorCode::kCorrupt, std::string("'") + key + "' is not " + wanted, key);
}
tl::unexpected<Error> missing(const char* key) {
    return fail(ErrorCode::kCorrupt, std::string("'") + key + "' is missing", key);
}

}  // namespace

Expected<Json> parse_json(std::string_view text, const std::string& what) {
    bool too_deep = false;
    bool duplicate = false;
    std::vector<std::set<std::string>> keys;
    const auto watch = [&](int depth, Json::parse_event_t event, Json& parsed) {
        if (depth > kDepthMax) too_deep = true;
        if (event == Json::parse_event_t::object_start) {
            keys.emplace_back();
        } else if (event == Json::parse_event_t::object_end) {
            if (!keys.empty()) keys.pop_back();
        } else if (event == Json::parse_event_t::key && !keys.empty()) {
            duplicate = !keys.back().insert(parsed.get<std::string>()).second || duplicate;
        }
        return !too_deep;
    };
    Json out = Json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
    if (too_deep) return fail(ErrorCode::kCorrupt, what + " is nested too deeply");
    if (out.is_discarded()) return fail(ErrorCode::kCorrupt, what + " is not valid JSON");
    if (duplicate) return fail(ErrorCode::kCorrupt, what + " has an object with a duplicate key");
    return out;
}

Expected<std::string> read_file(const std::string& path, size_t bytes_max) {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!fd) return fail(ErrorCode::kNotFound, "cannot open " + path);
    struct stat st {};
    if (::fstat(fd.get(), &st) != 0 || !S_ISREG(st.st_mode)) {
        return fail(ErrorCode::kInvalidArgument, path + " is not a regular file");
    }
    if (static_cast<uint64_t>(st.st_size) > bytes_max)
        return fail(ErrorCode::kCorrupt, path + " is too large");
    std::string out(static_cast<size_t>(st.st_size), '\0');
    size_t done = 0;
    while (done < out.size()) {
        const ssize_t n = ::read(fd.get(), out.data() + done, out.size() - done);
        if (n <= 0) return fail(ErrorCode::kIo, "cannot read " + path);
        done += static_cast<size_t>(n);
    }
    return out;
}

const Json* member(const Json& object, const char* key) {
    if (!object.is_object()) return nullptr;
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
}

Expected<uint64_t> uint_member(const Json& object, const char* key, uint64_t max,
                               std::optional<uint64_t> fallback) {
    const Json* v = member(object, key);
    if (v == nullptr) {
        if (!fallback) return missing(key);
        return *fallback;
    }
    if (!v->is_number_unsigned()) return wrong(key, "a non-negative integer");
    const auto n = v->get<uint64_t>();
    if (n > max) return wrong(key, "a usable size");
    return n;
}

Expected<double> float_member(const Json& object, const char* key, std::optional<double> fallback) {
    const Json* v = member(object, key);
    if (v == nullptr) {
        if (!fallback) return missing(key);
        return *fallback;
    }
    if (!v->is_number() || !std::isfinite(v->get<double>())) return wrong(key, "a number");
    return v->get<double>();
}

Expected<bool> bool_member(const Json& object, const char* key, std::optional<bool> fallback) {
    const Json* v = member(object, key);
    if (v == nullptr) {
        if (!fallback) return missing(key);
        return *fallback;
    }
    if (!v->is_boolean()) return wrong(key, "true or false");
    return v->get<bool>();
}

Expected<std::string> string_member(const Json& object, const char* key,
                                    std::optional<std::string> fallback) {
    const Json* v = member(object, key);
    if (v == nullptr) {
        if (!fallback) return missing(key);
        return std::move(*fallback);
    }
    if (!v->is_string()) return wrong(key, "a string");
    return v->get<std::string>();
}

}  // namespace baton::model
