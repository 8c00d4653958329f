#include "config/rule.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "config/arguments.hpp"

namespace baton::config {
namespace {

/// Numbers of 0 to 65535, as long as a schema can say it.
constexpr std::string_view kPortPattern = "0*(?:[0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])";
constexpr std::string_view kUnprintable = "[\\u0000-\\u0020\\u007f]";  ///< spaces and control characters of ASCII

bool unprintable(char c) { return static_cast<unsigned char>(c) <= 0x20 || c == 0x7f; }

bool is_ip_address(const std::string& text) {
    in6_addr address{};
    return ::inet_pton(AF_INET, text.c_str(), &address) == 1 || ::inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

std::string why_no_address(std::string_view text) {
    if (text.empty()) return {};
    if (text == "0.0.0.0" || text == "::") return "must be an address others can reach, not " + std::string(text);
    return is_ip_address(std::string(text)) ? "" : "must be an IP address, got " + in_quotes(text);
}

std::string why_no_ip_port(std::string_view text) {
    if (text.empty()) return {};
    uint16_t port = 0;
    const size_t colon = text.rfind(':');
    const bool good = colon != std::string_view::npos && colon > 0 && parse_number(text.substr(colon + 1), port) && std::none_of(text.begin(), text.end(), unprintable);
    return good ? "" : "must be IP:PORT, got " + in_quotes(text);
}

std::string why_no_choice(const Rule& rule, std::string_view text) {
    for (const std::string_view c : rule.choices)
        if (rule.any_case ? equal_any_case(c, text) : c == text) return {};
    return "must be " + choices_text(rule, "") + ", got " + in_quotes(text);
}

}  // namespace

bool equal_any_case(std::string_view a, std::string_view b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
        return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
    });
}

std::string why_broken(const Rule& rule, std::string_view text) {
    if (!rule.choices.empty()) return why_no_choice(rule, text);
    switch (rule.form) {
        case Rule::Form::kAny: return {};
        case Rule::Form::kNotEmpty: return text.empty() ? "must not be empty" : "";
        case Rule::Form::kWord:
            return text.empty() || std::any_of(text.begin(), text.end(), unprintable) ? "must be non-empty and without spaces or control characters" : "";
        case Rule::Form::kAbsolutePath: return text.empty() || text.front() == '/' ? "" : "must be an absolute path, got " + in_quotes(text);
        case Rule::Form::kIpAddress: return why_no_address(text);
        case Rule::Form::kIpPort: return why_no_ip_port(text);
        case Rule::Form::kSecret: return text.empty() || text.size() >= kLinkSecretMin ? "" : "must have at least " + std::to_string(kLinkSecretMin) + " characters";
    }
    return {};
}

std::string choices_text(const Rule& rule, std::string_view quote) {
    std::vector<std::string> names;
    for (const std::string_view c : rule.choices)
        if (!c.empty()) names.push_back(std::string(quote) + std::string(c) + std::string(quote));
    std::string out;
    for (size_t i = 0; i < names.size(); ++i) {
        if (i > 0) out += i + 1 == names.size() ? " or " : ", ";
        out += names[i];
    }
    return out;
}

std::string any_case_pattern(const std::vector<std::string_view>& names) {
    std::string out;
    for (const std::string_view name : names) {
        if (!out.empty()) out += '|';
        for (const char c : name) {
            const auto u = static_cast<unsigned char>(c);
            if (std::isalpha(u) != 0) out += std::string("[") + static_cast<char>(std::toupper(u)) + static_cast<char>(std::tolower(u)) + "]";
            else if (std::isdigit(u) != 0 || c == '_') out += c;
            else out += std::string("\\") + c;
        }
    }
    return "^(?:" + out + ")$";
}

Json text_schema(const Rule& rule) {
    Json out{{"type", "string"}};
    if (!rule.choices.empty() && rule.any_case) {
        out["pattern"] = any_case_pattern(rule.choices);
        out["examples"] = Json::array();
        for (const std::string_view c : rule.choices)
            if (!c.empty()) out["examples"].push_back(c);
    } else if (!rule.choices.empty()) {
        out["enum"] = rule.choices;
    }
    const Json empty{{"const", ""}};
    switch (rule.form) {
        case Rule::Form::kAny: break;
        case Rule::Form::kNotEmpty: out["minLength"] = 1; break;
        case Rule::Form::kWord:
            out["minLength"] = 1;
            out["not"] = {{"pattern", kUnprintable}};
            break;
        case Rule::Form::kAbsolutePath: out["anyOf"] = {empty, {{"pattern", "^/"}}}; break;
        case Rule::Form::kIpAddress:
            out["anyOf"] = {empty, {{"format", "ipv4"}}, {{"format", "ipv6"}}};
            out["not"] = {{"enum", {"0.0.0.0", "::"}}};
            break;
        case Rule::Form::kIpPort:
            out["anyOf"] = {empty, {{"pattern", "^.+:" + std::string(kPortPattern) + "$"}, {"not", {{"pattern", kUnprintable}}}}};
            break;
        case Rule::Form::kSecret: out["anyOf"] = {empty, {{"minLength", kLinkSecretMin}}}; break;
    }
    return out;
}

Json number_schema(const Rule& rule, uint64_t type_max) {
    return {{"type", "integer"}, {"minimum", rule.min}, {"maximum", rule.max == 0 ? type_max : rule.max}};
}

}  // namespace baton::config
