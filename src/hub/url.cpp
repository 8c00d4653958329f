#include "url.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include "baton/base/encoding.hpp"
#include "names.hpp"

namespace baton::hub {
namespace {

bool is_unreserved(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.' || c == '~';
}

Expected<void> take_authority(std::string_view authority, Url& out) {
    const auto bad = [] { return fail(ErrorCode::kInvalidArgument, "the address has no valid host and port"); };
    if (const size_t at = authority.rfind('@'); at != std::string_view::npos) {
        out.user_info = percent_decode(authority.substr(0, at));
        authority.remove_prefix(at + 1);
    }
    std::string_view port;
    if (authority.starts_with('[')) {
        const size_t end = authority.find(']');
        if (end == std::string_view::npos) return bad();
        out.host = lower(authority.substr(1, end - 1));
        port = authority.substr(end + 1);
    } else {
        const size_t colon = std::min(authority.find(':'), authority.size());
        out.host = lower(authority.substr(0, colon));
        port = authority.substr(colon);
    }
    const auto host_char = [](char c) { return is_unreserved(c) || c == ':'; };
    if (out.host.empty() || out.host.size() > 253 || !std::all_of(out.host.begin(), out.host.end(), host_char)) return bad();
    out.port = out.tls ? 443 : 80;
    if (port.empty() || port == ":") return {};
    const auto [end, error] = std::from_chars(port.data() + 1, port.data() + port.size(), out.port);
    if (port.front() != ':' || error != std::errc() || end != port.data() + port.size() || out.port == 0) return bad();
    return {};
}

}  // namespace

std::string Url::authority() const {
    const std::string name = host.find(':') == std::string::npos ? host : "[" + host + "]";
    return port == (tls ? 443 : 80) ? name : name + ":" + std::to_string(port);
}

std::string Url::origin() const { return (tls ? "https://" : "http://") + authority(); }

Expected<Url> parse_url(std::string_view text) {
    Url out;
    const size_t scheme = text.find("://");
    const std::string name = scheme == std::string_view::npos ? "" : lower(text.substr(0, scheme));
    if (name != "http" && name != "https")
        return fail(ErrorCode::kInvalidArgument, "the address must begin with https:// or http://");
    const auto odd = [](char c) { return static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7f; };
    if (text.size() > 16'384 || std::any_of(text.begin(), text.end(), odd))
        return fail(ErrorCode::kInvalidArgument, "the address has odd characters");
    out.tls = name == "https";
    text.remove_prefix(scheme + 3);
    text = text.substr(0, text.find('#'));
    const size_t end = std::min(text.find_first_of("/?"), text.size());
    BATON_TRY(take_authority(text.substr(0, end), out));
    out.target = text.substr(end);
    if (!out.target.starts_with('/')) out.target.insert(0, "/");
    return out;
}

Expected<Url> resolve_location(const Url& base, std::string_view location) {
    if (location.starts_with("//")) return parse_url((base.tls ? "https:" : "http:") + std::string(location));
    if (location.find("://") != std::string_view::npos && location.find("://") < location.find_first_of("/?")) return parse_url(location);
    const std::string folder = base.target.substr(0, base.target.find('?'));
    const std::string path = location.starts_with('/') ? std::string() : folder.substr(0, folder.rfind('/') + 1);
    return parse_url(base.origin() + path + std::string(location));
}

std::string percent_encode(std::string_view text, bool query) {
    static constexpr std::string_view kDigits = "0123456789ABCDEF";
    std::string out;
    for (const char c : text) {
        if (is_unreserved(c) || (c == '/' && !query)) {
            out += c;
        } else {
            const auto u = static_cast<unsigned char>(c);
            out += '%';
            out += kDigits[u >> 4];
            out += kDigits[u & 15];
        }
    }
    return out;
}

std::string percent_decode(std::string_view text) {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
        const int high = i + 2 < text.size() && text[i] == '%' ? hex_digit(text[i + 1]) : -1;
        const int low = high >= 0 ? hex_digit(text[i + 2]) : -1;
        if (low >= 0) {
            out += static_cast<char>(high * 16 + low);
            i += 2;
        } else {
            out += text[i];
        }
    }
    return out;
}

bool bypasses_proxy(std::string_view no_proxy, const Url& url) {
    while (!no_proxy.empty()) {
        const size_t comma = std::min(no_proxy.find_first_of(", "), no_proxy.size());
        std::string item = lower(no_proxy.substr(0, comma));
        no_proxy.remove_prefix(std::min(comma + 1, no_proxy.size()));
        if (item == "*") return true;
        if (item.starts_with('.')) item.erase(0, 1);
        if (item.empty()) continue;
        if (item == url.host || item == url.host + ":" + std::to_string(url.port)) return true;
        if (url.host.size() > item.size() && url.host.ends_with("." + item)) return true;
    }
    return false;
}

}  // namespace baton::hub
