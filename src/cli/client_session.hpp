#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "baton/http/client.hpp"
#include "cli/table.hpp"
#include "cli/terminal.hpp"

namespace baton::cli {

using Json = nlohmann::ordered_json;

/// Exit codes of every command.
inline constexpr int kDone = 0, kFailed = 1, kUsage = 2;

/// Where the server is and who asks; empty fields are taken from the environment (docs/CONFIG.md).
struct Server {
    std::string endpoint;
    std::string api_key;
    std::string ca_file = {};  ///< https: what its certificate is checked with
};

/// The endpoint a command uses: as given, else the environment's, else the local default; without slashes and /v1 at its end.
[[nodiscard]] std::string resolve_endpoint(const Server& server);
/// kInvalidArgument where that is no URL a server can have.
[[nodiscard]] Expected<void> check_endpoint(const Server& server);
/// The key a command uses: as given, else the environment's, else the token of `baton login`, else none.
[[nodiscard]] std::string resolve_api_key(const Server& server);

/// The CA file a command uses: as given, else BATON_CA_FILE, else "" (the system's, which SSL_CERT_FILE may name).
[[nodiscard]] std::string resolve_ca_file(const Server& server);

/// Requests of one client command. call(), get() and stream() print every failure on stderr once, in the server's words;
/// ask() hands it to the caller. A token of `baton login` that has expired is renewed where the server allows it.
class ClientSession {
  public:
    /// `interrupted` ends post() and stream() (http::ClientOptions).
    explicit ClientSession(const Server& server, std::function<bool()> interrupted = {});
    [[nodiscard]] bool ok() const { return client_ != nullptr; }
    [[nodiscard]] const std::string& endpoint() const { return endpoint_; }
    /// Sends a request and parses the answer. Errors carry the server's words, and kUnauthorized, kNotFound,
    /// kInvalidArgument, kOverloaded, kUnavailable or kInternal by its status.
    [[nodiscard]] Expected<Json> ask(std::string_view method, const std::string& target, std::string_view body = {});
    /// The body of a GET as it is.
    [[nodiscard]] Expected<std::string> text(const std::string& target);
    /// Sends a request; true and the parsed body on status 200.
    [[nodiscard]] bool call(std::string_view method, const std::string& target, std::string_view body, Json& out);
    [[nodiscard]] bool get(const std::string& target, Json& out) { return call("GET", target, "", out); }
    /// call() with POST that `interrupted` cuts short.
    [[nodiscard]] bool post(const std::string& target, const std::string& body, Json& out);
    /// Posts and hands each event's JSON to `on_event` until the stream ends; false when it failed or was interrupted. An
    /// event with an `error` ends it. The stream stops early where `on_event` returns false.
    [[nodiscard]] bool stream(const std::string& target, const std::string& body,
                              const std::function<bool(const Json&)>& on_event);
    /// Whether the last post() or stream() ended because `interrupted` said so; nothing is printed then.
    [[nodiscard]] bool was_interrupted() const { return was_interrupted_; }

  private:
    void connect();
    [[nodiscard]] bool renew_token();
    [[nodiscard]] Expected<Json> parse(const Expected<http::ClientResponse>& response) const;
    [[nodiscard]] Error describe(const Error& error) const;
    [[nodiscard]] Error describe(const http::ClientResponse& response) const;

    std::string endpoint_;
    std::string ca_file_;
    std::string api_key_;
    bool key_given_;  ///< by option or environment: no token of a login is used
    std::function<bool()> interrupted_;
    bool was_interrupted_ = false;
    std::unique_ptr<http::Client> client_;
};

/// Percent-encodes what may not stand in a path; '/' too.
[[nodiscard]] std::string encode_path(std::string_view text);
/// The member as text: strings as they are, null or absent as "-", other kinds as JSON.
[[nodiscard]] std::string text_of(const Json& object, const char* key);
/// The member, where `object` is one and has it and it is not null; else nullptr.
[[nodiscard]] const Json* member_of(const Json& object, const char* key);
/// Prints indented JSON on standard output.
int print_json(const Json& value);

}  // namespace baton::cli
