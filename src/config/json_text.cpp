#include "config/json_text.hpp"

#include "baton/base/encoding.hpp"
#include "baton/base/limits.hpp"

namespace baton::config {

Expected<Json> parse_json_text(std::string_view text) {
    if (json_depth(text) > limits::kJsonDepthMax)
        return fail(ErrorCode::kInvalidArgument,
                    "JSON is nested deeper than " + std::to_string(limits::kJsonDepthMax) + " levels");
    try {
        return Json::parse(text.begin(), text.end());
    } catch (const nlohmann::json::parse_error& e) {
        return fail(ErrorCode::kInvalidArgument, "malformed JSON at byte " + std::to_string(e.byte));
    } catch (const nlohmann::json::exception&) {
        return fail(ErrorCode::kInvalidArgument, "malformed JSON: a number is out of range");
    }
}

std::string in_quotes(std::string_view text) {
    std::string out = "'";
    for (const char c : text.substr(0, limits::kErrorEchoBytesMax)) {
        const auto u = static_cast<unsigned char>(c);
        out += u < 0x20 || u == 0x7f ? '?' : c;
    }
    // A multi-byte character that was cut would make the message invalid UTF-8.
    if (text.size() > limits::kErrorEchoBytesMax) {
        while (!out.empty() && (static_cast<unsigned char>(out.back()) & 0xC0) == 0x80) out.pop_back();
        if (!out.empty() && static_cast<unsigned char>(out.back()) >= 0xC0) out.pop_back();
        out += "…";
    }
    return out + "'";
}

std::string kind_of(const Json& v) {
    if (v.is_null()) return "null";
    if (v.is_boolean()) return "a boolean";
    if (v.is_number_float()) return "a float";
    if (v.is_number()) return "an integer";
    if (v.is_string()) return "a string";
    if (v.is_array()) return "a list";
    return "an object";
}

}  // namespace baton::config
