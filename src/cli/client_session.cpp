#include "cli/client_session.hpp"

#include <cstdio>
#include <cstdlib>

#include "cli/credentials.hpp"

namespace baton::cli {
namespace {

std::string first_set(std::string_view given, std::initializer_list<const char*> variables, const char* otherwise) {
    if (!given.empty()) return std::string(given);
    for (const char* name : variables)
        if (const char* v = std::getenv(name); v != nullptr && *v != '\0') return v;
    return otherwise;
}

std::string given_key(const Server& server) { return first_set(server.api_key, {"BATON_API_KEY", "XINFERENCE_API_KEY"}, ""); }

ErrorCode code_of(int status) {
    switch (status) {
        case 400: case 422: return ErrorCode::kInvalidArgument;
        case 401: case 403: return ErrorCode::kUnauthorized;
        case 404: return ErrorCode::kNotFound;
        case 429: return ErrorCode::kOverloaded;
        case 499: return ErrorCode::kCancelled;
        case 503: return ErrorCode::kUnavailable;
        default: return ErrorCode::kInternal;
    }
}

}  // namespace

std::string resolve_endpoint(const Server& server) {
    std::string url = first_set(server.endpoint, {"BATON_ENDPOINT", "XINFERENCE_ENDPOINT"}, "http://127.0.0.1:9997");
    const auto without_slashes = [&] {
        while (url.ends_with('/') && !url.ends_with("://")) url.pop_back();
    };
    without_slashes();
    // What OpenAI's clients are given.
    if (url.ends_with("/v1")) url.resize(url.size() - 3);
    without_slashes();
    return url;
}

Expected<void> check_endpoint(const Server& server) {
    http::ClientOptions options;
    options.base_url = resolve_endpoint(server);
    auto client = http::Client::create(options);
    if (client) return {};
    return fail(ErrorCode::kInvalidArgument, options.base_url + ": " + client.error().message);
}

std::string resolve_api_key(const Server& server) {
    std::string key = given_key(server);
    if (key.empty())
        if (const auto stored = load_credentials(resolve_endpoint(server))) key = stored->access_token;
    return key;
}

std::string resolve_ca_file(const Server& server) { return first_set(server.ca_file, {"BATON_CA_FILE"}, ""); }

ClientSession::ClientSession(const Server& server, std::function<bool()> interrupted)
    : endpoint_(resolve_endpoint(server)),
      ca_file_(resolve_ca_file(server)),
      api_key_(resolve_api_key(server)),
      key_given_(!given_key(server).empty()),
      interrupted_(std::move(interrupted)) {
    connect();
}

void ClientSession::connect() {
    http::ClientOptions options;
    options.base_url = endpoint_;
    options.ca_file = ca_file_;
    options.api_key = api_key_;
    options.interrupted = interrupted_;
    auto client = http::Client::create(options);
    if (client) client_ = std::move(*client);
    else cli::complain(endpoint_ + ": " + client.error().message);
}

/// A token of a login that the server no longer takes: asks for a new one, once a request.
bool ClientSession::renew_token() {
    if (key_given_) return false;
    const auto stored = load_credentials(endpoint_);
    if (!stored || stored->refresh_token.empty() || stored->access_token != api_key_) return false;
    const auto response = client_->request("POST", "/token/refresh", Json{{"refresh_token", stored->refresh_token}}.dump());
    if (!response || response->status != 200) return false;
    const Json answer = Json::parse(response->body, nullptr, false);
    Credentials renewed{text_of(answer, "access_token"), text_of(answer, "refresh_token")};
    if (renewed.access_token == "-") return false;
    if (renewed.refresh_token == "-") renewed.refresh_token = stored->refresh_token;
    if (auto kept = store_credentials(endpoint_, renewed); !kept) cli::complain("warning: " + kept.error().message);
    api_key_ = renewed.access_token;
    connect();
    return client_ != nullptr;
}

Error ClientSession::describe(const Error& error) const {
    Error out = error;
    if (error.code == ErrorCode::kUnavailable)
        out.message += ": is `baton serve` running there? (--endpoint or BATON_ENDPOINT name another server)";
    if (error.code == ErrorCode::kIo && error.message.find("certificate is not trusted") != std::string::npos)
        out.message += ": --ca-file or BATON_CA_FILE name the certificates to trust";
    return out;
}

Error ClientSession::describe(const http::ClientResponse& response) const {
    std::string why;
    const Json body = Json::parse(response.body, nullptr, false);
    if (const Json* detail = member_of(body, "detail")) why = detail->is_string() ? detail->get<std::string>() : detail->dump();
    else if (const Json* error = member_of(body, "error")) why = error->is_object() ? text_of(*error, "message") : error->dump();
    why = why.empty() ? "the server answered with status " + std::to_string(response.status)
                      : why + " (status " + std::to_string(response.status) + ")";
    if (response.status == 401)
        why += api_key_.empty() ? ": give a key with --api-key or BATON_API_KEY, or log in with `baton login`"
                                : key_given_ ? "" : ": log in again with `baton login`";
    return {code_of(response.status), std::move(why), {}};
}

Expected<Json> ClientSession::ask(std::string_view method, const std::string& target, std::string_view body) {
    if (!client_) return fail(ErrorCode::kInvalidArgument, "the endpoint is not usable: " + endpoint_);
    auto response = client_->request(method, target, body);
    if (response && response->status == 401 && renew_token()) response = client_->request(method, target, body);
    return parse(response);
}

Expected<std::string> ClientSession::text(const std::string& target) {
    if (!client_) return fail(ErrorCode::kInvalidArgument, "the endpoint is not usable: " + endpoint_);
    auto response = client_->request("GET", target, "");
    if (response && response->status == 401 && renew_token()) response = client_->request("GET", target, "");
    if (!response) return fail(describe(response.error()));
    if (response->status != 200) return fail(describe(*response));
    return std::move(response->body);
}

/// The body of a good answer, else what went wrong.
Expected<Json> ClientSession::parse(const Expected<http::ClientResponse>& response) const {
    if (!response) return fail(describe(response.error()));
    if (response->status != 200) return fail(describe(*response));
    Json out = Json::parse(response->body, nullptr, false);
    if (out.is_discarded()) return fail(ErrorCode::kInternal, endpoint_ + " does not answer in JSON: is it a baton server?");
    return out;
}

bool ClientSession::call(std::string_view method, const std::string& target, std::string_view body, Json& out) {
    if (!client_) return false;
    auto answer = ask(method, target, body);
    if (!answer) {
        cli::complain(answer.error().message);
        return false;
    }
    out = std::move(*answer);
    return true;
}

bool ClientSession::post(const std::string& target, const std::string& body, Json& out) {
    was_interrupted_ = false;
    if (!client_) return false;
    // The server answers with a body: there are no events.
    const auto send = [&] { return client_->stream(target, body, [](std::string_view) { return true; }); };
    auto response = send();
    if (response && response->status == 401 && renew_token()) response = send();
    was_interrupted_ = !response && response.error().code == ErrorCode::kAborted;
    if (was_interrupted_) return false;
    auto answer = parse(response);
    if (answer) out = std::move(*answer);
    else cli::complain(answer.error().message);
    return answer.has_value();
}

bool ClientSession::stream(const std::string& target, const std::string& body,
                           const std::function<bool(const Json&)>& on_event) {
    was_interrupted_ = false;
    if (!client_) return false;
    bool failed = false;
    const auto send = [&] {
        return client_->stream(target, body, [&](std::string_view data) {
            if (data == "[DONE]") return true;
            const Json event = Json::parse(data, nullptr, false);
            if (!event.is_object()) return true;
            if (const Json* error = member_of(event, "error")) {
                cli::complain(error->is_object() ? text_of(*error, "message") : error->dump());
                failed = true;
                return false;
            }
            return on_event(event);
        });
    };
    auto response = send();
    if (response && response->status == 401 && renew_token()) response = send();
    if (failed) return false;
    if (!response) {
        was_interrupted_ = response.error().code == ErrorCode::kAborted;
        if (!was_interrupted_) cli::complain(describe(response.error()).message);
        return false;
    }
    if (response->status != 200) cli::complain(describe(*response).message);
    return response->status == 200;
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

const Json* member_of(const Json& object, const char* key) {
    if (!object.is_object()) return nullptr;
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::string text_of(const Json& object, const char* key) {
    const Json* value = member_of(object, key);
    if (value == nullptr) return "-";
    return value->is_string() ? value->get<std::string>() : value->dump(-1, ' ', false, Json::error_handler_t::replace);
}

int print_json(const Json& value) {
    std::printf("%s\n", value.dump(2, ' ', false, Json::error_handler_t::replace).c_str());
    return kDone;
}

}  // namespace baton::cli
