#include "config/json_text.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "baton/base/encoding.hpp"
#include "baton/base/limits.hpp"

namespace baton::config {

namespace {

enum class Places : uint8_t { kBytes, kLines };

/// Where the text stops being JSON: by bytes, or as editors count.
std::string place(std::string_view text, size_t byte, Places places) {
    if (places == Places::kBytes) return "byte " + std::to_string(byte);
    const std::string_view before = text.substr(0, byte > 0 ? byte - 1 : 0);
    const size_t line_begin = before.rfind('\n') + 1;  // 0 on the first line
    return "line " + std::to_string(1 + std::count(before.begin(), before.end(), '\n')) + ", column " + std::to_string(before.size() - line_begin + 1);
}

Expected<Json> parse(std::string_view text, Places places) {
    if (json_depth(text) > limits::kJsonDepthMax)
        return fail(ErrorCode::kInvalidArgument,
                    "JSON is nested deeper than " + std::to_string(limits::kJsonDepthMax) + " levels");
    try {
        return Json::parse(text.begin(), text.end());
    } catch (const nlohmann::json::parse_error& e) {
        return fail(ErrorCode::kInvalidArgument, "malformed JSON at " + place(text, e.byte, places));
    } catch (const nlohmann::json::exception&) {
        return fail(ErrorCode::kInvalidArgument, "malformed JSON: a number is out of range");
    }
}

}  // namespace

Expected<Json> parse_json_text(std::string_view text) { return parse(text, Places::kBytes); }

Expected<Json> parse_json_file(std::string_view text) {
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos)
        return fail(ErrorCode::kInvalidArgument, "the file is empty; it must hold a JSON object, {} at least");
    BATON_TRY_ASSIGN(Json all, parse(text, Places::kLines));
    std::vector<std::set<std::string>> seen;  // keys of the objects that are open
    std::vector<std::string> path;            // and where each of them is
    std::string twice;
    const auto watch = [&](int, Json::parse_event_t event, Json& parsed) {
        if (event == Json::parse_event_t::object_start) {
            seen.emplace_back();
            path.emplace_back();
        } else if (event == Json::parse_event_t::object_end) {
            seen.pop_back();
            path.pop_back();
        } else if (event == Json::parse_event_t::key) {
            path.back() = parsed.get<std::string>();
            if (seen.back().insert(path.back()).second || !twice.empty()) return true;
            for (const std::string& key : path) twice += "/" + key;
        }
        return true;
    };
    [[maybe_unused]] const Json again = Json::parse(text.begin(), text.end(), watch);
    if (!twice.empty()) return fail(ErrorCode::kInvalidArgument, in_quotes(twice) + " stands there twice", twice);
    return all;
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
    if (v.is_number()) return is_integer(v) ? "an integer" : "an integer that is too large";
    if (v.is_string()) return "a string";
    if (v.is_array()) return "a list";
    return "an object";
}

}  // namespace baton::config
