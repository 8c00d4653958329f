#include <algorithm>
#include <string_view>

#include "baton/http/message.hpp"

namespace baton::http {
namespace {

constexpr size_t kVersion = 2, kTrace = 32, kParent = 16, kFlags = 2;
constexpr size_t kAll = kVersion + 1 + kTrace + 1 + kParent + 1 + kFlags;

bool lower_hex(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool all_zero(std::string_view text) { return text.find_first_not_of('0') == std::string_view::npos; }

}  // namespace

std::string_view trace_id(const Request& request) {
    const std::string* found = nullptr;
    for (const auto& [name, value] : request.headers) {
        if (name != "traceparent") continue;
        if (found != nullptr) return {};
        found = &value;
    }
    if (found == nullptr || found->size() < kAll) return {};
    const std::string_view text = *found;
    const std::string_view version = text.substr(0, kVersion), trace = text.substr(kVersion + 1, kTrace), parent = text.substr(kVersion + kTrace + 2, kParent),
                           flags = text.substr(kAll - kFlags, kFlags);
    const bool dashes = text[kVersion] == '-' && text[kVersion + 1 + kTrace] == '-' && text[kAll - kFlags - 1] == '-';
    if (!dashes || !lower_hex(version) || !lower_hex(trace) || !lower_hex(parent) || !lower_hex(flags)) return {};
    if (version == "ff" || all_zero(trace) || all_zero(parent)) return {};
    // Later versions may add parts behind another dash.
    if (text.size() > kAll && (version == "00" || text[kAll] != '-')) return {};
    return trace;
}

}  // namespace baton::http
