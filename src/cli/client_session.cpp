#include "cli/client_session.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace baton::cli {
namespace {

std::string first_set(std::string_view given, std::initializer_list<const char*> variables, const char* otherwise) {
    if (!given.empty()) return std::string(given);
    for (const char* name : variables)
        if (const char* v = std::getenv(name); v != nullptr && *v != '\0') return v;
    return otherwise;
}

/// Characters of UTF-8 text, which is what a terminal shows of it but for wide ones.
size_t width_of(std::string_view text) {
    return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                             [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

/// Text from the server must not drive the terminal.
std::string printable(std::string_view text) {
    std::string out(text);
    std::replace_if(out.begin(), out.end(), [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f; }, '?');
    return out;
}

}  // namespace

std::string resolve_endpoint(const Server& server) {
    return first_set(server.endpoint, {"BATON_ENDPOINT", "XINFERENCE_ENDPOINT"}, "http://127.0.0.1:9997");
}

std::string resolve_api_key(const Server& server) {
    return first_set(server.api_key, {"BATON_API_KEY", "XINFERENCE_API_KEY"}, "");
}

void complain(std::string_view message) {
    std::fprintf(stderr, "baton: %s\n", printable(message).c_str());
}

ClientSession::ClientSession(const Server& server) : endpoint_(resolve_endpoint(server)) {
    http::ClientOptions options;
    options.base_url = endpoint_;
    options.api_key = resolve_api_key(server);
    auto client = http::Client::create(options);
    if (client) client_ = std::move(*client);
    else cli::complain(client.error().message);
}

bool ClientSession::complain(const http::ClientResponse& response) const {
    std::string why;
    const Json body = Json::parse(response.body, nullptr, false);
    if (body.is_object() && body.contains("detail")) {
        const Json& detail = body["detail"];
        why = detail.is_string() ? detail.get<std::string>() : detail.dump();
    } else if (body.is_object() && body.contains("error")) {
        why = body["error"].dump();
    }
    cli::complain(why.empty() ? "the server answered with status " + std::to_string(response.status)
                              : why + " (status " + std::to_string(response.status) + ")");
    return false;
}

bool ClientSession::call(std::string_view method, const std::string& target, std::string_view body, Json& out) {
    if (!client_) return false;
    const auto response = client_->request(method, target, body);
    if (!response) {
        cli::complain(response.error().message);
        return false;
    }
    if (response->status != 200) return complain(*response);
    out = Json::parse(response->body, nullptr, false);
    if (!out.is_discarded()) return true;
    cli::complain(endpoint_ + " does not answer in JSON: is it a baton server?");
    return false;
}

bool ClientSession::stream(const std::string& target, const std::string& body,
                           const std::function<bool(const Json&)>& on_event) {
    if (!client_) return false;
    bool failed = false;
    const auto response = client_->stream(target, body, [&](std::string_view data) {
        if (data == "[DONE]") return true;
        const Json event = Json::parse(data, nullptr, false);
        if (!event.is_object()) return true;
        if (const auto error = event.find("error"); error != event.end() && !error->is_null()) {
            cli::complain(error->is_object() ? text_of(*error, "message") : error->dump());
            failed = true;
            return false;
        }
        return on_event(event);
    });
    if (failed) return false;
    if (!response) {
        cli::complain(response.error().message);
        return false;
    }
    return response->status == 200 || complain(*response);
}

std::string encode_path(std::string_view text) {
    static constexpr std::string_view kPlain = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    std::string out;
    for (const char c : text) {
        if (kPlain.find(c) != std::string_view::npos) {
            out += c;
        } else {
            char code[4];
            std::snprintf(code, sizeof code, "%%%02X", static_cast<unsigned>(static_cast<unsigned char>(c)));
            out += code;
        }
    }
    return out;
}

std::string text_of(const Json& object, const char* key) {
    if (!object.is_object()) return "-";
    const auto it = object.find(key);
    if (it == object.end() || it->is_null()) return "-";
    return it->is_string() ? it->get<std::string>() : it->dump();
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
    std::vector<size_t> widths;
    for (const auto& row : rows)
        for (size_t i = 0; i < row.size(); ++i) {
            if (i == widths.size()) widths.push_back(0);
            widths[i] = std::max(widths[i], width_of(row[i]));
        }
    for (const auto& row : rows) {
        std::string line;
        for (size_t i = 0; i < row.size(); ++i) {
            line += printable(row[i]);
            if (i + 1 < row.size()) line += std::string(widths[i] - width_of(row[i]) + 2, ' ');
        }
        std::printf("%s\n", line.c_str());
    }
}

}  // namespace baton::cli
