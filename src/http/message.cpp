#include "baton/http/message.hpp"

#include <algorithm>
#include <optional>

#include "baton/base/encoding.hpp"
#include "baton/base/utf8.hpp"
#include "http/request_parser.hpp"

namespace baton::http {
namespace {

bool is_clean_text(std::string_view text) {
    for (size_t pos = 0; pos < text.size();) {
        const auto byte = static_cast<uint8_t>(text[pos]);
        const size_t length = valid_utf8_length(text, pos);
        if (length == 0 || byte < 0x20 || byte == 0x7F) return false;
        pos += length;
    }
    return true;
}

/// Percent-decodes; nothing when an escape is malformed or the result holds control characters or
/// invalid UTF-8.
std::optional<std::string> percent_decode(std::string_view text, bool plus_is_space) {
    std::string out;
    out.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '+' && plus_is_space) {
            out.push_back(' ');
        } else if (text[i] != '%') {
            out.push_back(text[i]);
        } else {
            if (i + 2 >= text.size()) return std::nullopt;
            const int high = hex_digit(text[i + 1]);
            const int low = hex_digit(text[i + 2]);
            if (high < 0 || low < 0) return std::nullopt;
            out.push_back(static_cast<char>(high * 16 + low));
            i += 2;
        }
    }
    if (!is_clean_text(out)) return std::nullopt;
    return out;
}

bool split_path(Request& request) {
    std::string_view rest = std::string_view(request.path).substr(1);
    for (;;) {
        const size_t slash = rest.find('/');
        auto segment = percent_decode(rest.substr(0, slash), false);
        if (!segment) return false;
        request.segments.push_back(std::move(*segment));
        if (slash == std::string_view::npos) return true;
        rest.remove_prefix(slash + 1);
    }
}

bool split_query(Request& request, std::string_view query) {
    while (!query.empty()) {
        const size_t end = query.find('&');
        const std::string_view pair = query.substr(0, end);
        if (!pair.empty()) {
            const size_t equals = pair.find('=');
            auto name = percent_decode(pair.substr(0, equals), true);
            auto value = percent_decode(
                equals == std::string_view::npos ? "" : pair.substr(equals + 1), true);
            if (!name || !value) return false;
            request.query.emplace_back(std::move(*name), std::move(*value));
        }
        if (end == std::string_view::npos) break;
        query.remove_prefix(end + 1);
    }
    return true;
}

}  // namespace

bool is_token(std::string_view name) {
    constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
    return !name.empty() && std::all_of(name.begin(), name.end(), [&](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               kMarks.find(c) != std::string_view::npos;
    });
}

std::string to_lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    }
    return out;
}

std::string_view trim(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t");
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

bool parse_target(Request& request) {
    std::string_view target = request.target;
    const auto visible = [](char c) { return c > 0x20 && c < 0x7F; };
    if (target.empty() || !std::all_of(target.begin(), target.end(), visible)) return false;
    if (target.find('#') != std::string_view::npos) return false;
    if (target == "*") {
        request.path = target;
        return request.method == "OPTIONS";
    }
    for (const std::string_view scheme : {"http://", "https://"}) {
        if (to_lower(target.substr(0, scheme.size())) != scheme) continue;
        target.remove_prefix(scheme.size());
        const size_t end = target.find_first_of("/?");
        if (end == 0) return false;
        target.remove_prefix(end == std::string_view::npos ? target.size() : end);
        break;
    }
    const size_t mark = target.find('?');
    request.path = target.substr(0, mark);
    if (request.path.empty() && request.target.front() != '/')
        request.path.push_back('/');  // absolute form without a path
    if (!request.path.starts_with('/')) return false;
    return split_path(request) &&
           (mark == std::string_view::npos || split_query(request, target.substr(mark + 1)));
}

std::string_view Request::header(std::string_view lower_case_name) const {
    for (const auto& [name, value] : headers) {
        if (name == lower_case_name) return value;
    }
    return {};
}

const std::string* Request::query_value(std::string_view name) const {
    for (const auto& [key, value] : query) {
        if (key == name) return &value;
    }
    return nullptr;
}

std::string_view reason_phrase(int status) {
    switch (status) {
        case 100:
            return "Continue";
        case 200:
            return "OK";
        case 201:
            return "Created";
        case 202:
            return "Accepted";
        case 204:
            return "No Content";
        case 304:
            return "Not Modified";
        case 400:
            return "Bad Request";
        case 401:
            return "Unauthorized";
        case 403:
            return "Forbidden";
        case 404:
            return "Not Found";
        case 405:
            return "Method Not Allowed";
        case 408:
            return "Request Timeout";
        case 409:
            return "Conflict";
        case 411:
            return "Length Required";
        case 413:
            return "Content Too Large";
        case 414:
            return "URI Too Long";
        case 415:
            return "Unsupported Media Type";
        case 417:
            return "Expectation Failed";
        case 421:
            return "Misdirected Request";
        case 422:
            return "Unprocessable Content";
        case 429:
            return "Too Many Requests";
        case 431:
            return "Request Header Fields Too Large";
        case 499:
            return "Client Closed Request";
        case 500:
            return "Internal Server Error";
        case 501:
            return "Not Implemented";
        case 503:
            return "Service Unavailable";
        case 504:
            return "Gateway Timeout";
        case 505:
            return "HTTP Version Not Supported";
        default:
            return "Unknown";
    }
}

std::string protocol_error_body(int status, std::string_view message) {
    std::string_view type = status >= 500 ? "server_error" : "invalid_request_error";
    std::string_view code = "invalid_request";
    switch (status) {
        case 401:
            type = "authentication_error";
            code = "invalid_api_key";
            break;
        case 429:
            type = "rate_limit_error";
            code = "rate_limit_exceeded";
            break;
        case 403:
            type = "permission_error";
            code = "forbidden";
            break;
        case 404:
            code = "not_found";
            break;
        case 405:
            code = "method_not_allowed";
            break;
        case 408:
            code = "request_timeout";
            break;
        case 413:
            code = "body_too_large";
            break;
        case 415:
            code = "unsupported_media_type";
            break;
        case 500:
            code = "internal_error";
            break;
        case 501:
            code = "not_implemented";
            break;
        case 503:
            code = "unavailable";
            break;
        default:
            break;
    }
    // Messages here are constants of our own: nothing in them needs escaping.
    std::string out = R"({"error":{"message":")";
    out.append(message)
        .append(R"(","type":")")
        .append(type)
        .append(R"(","param":null,"code":")")
        .append(code);
    out.append(R"("},"detail":")").append(message).append(R"("})");
    return out;
}

}  // namespace baton::http
