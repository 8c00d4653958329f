#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "baton/http/client.hpp"

namespace baton::cli {

using Json = nlohmann::ordered_json;

/// Exit codes of every command.
inline constexpr int kDone = 0, kFailed = 1, kUsage = 2;

/// Where the server is and who asks; empty fields are taken from the environment (docs/CONFIG.md).
struct Server {
    std::string endpoint;
    std::string api_key;
};

/// The endpoint a command uses: as given, else the environment's, else the local default.
[[nodiscard]] std::string resolve_endpoint(const Server& server);
/// The key a command uses: as given, else the environment's, else none.
[[nodiscard]] std::string resolve_api_key(const Server& server);

/// Requests of one client command. Every failure is printed on stderr once, where it is noticed, in the server's words.
class ClientSession {
  public:
    explicit ClientSession(const Server& server);
    [[nodiscard]] bool ok() const { return client_ != nullptr; }
    /// Sends a request; true and the parsed body on status 200.
    [[nodiscard]] bool call(std::string_view method, const std::string& target, std::string_view body, Json& out);
    [[nodiscard]] bool get(const std::string& target, Json& out) { return call("GET", target, "", out); }
    /// Posts and hands each event's JSON to `on_event` until the stream ends; false when it failed. An event with an
    /// `error` ends it. The stream stops early where `on_event` returns false.
    [[nodiscard]] bool stream(const std::string& target, const std::string& body,
                              const std::function<bool(const Json&)>& on_event);

  private:
    bool complain(const http::ClientResponse& response) const;
    std::string endpoint_;
    std::unique_ptr<http::Client> client_;
};

/// Percent-encodes what may not stand in a path; '/' stays.
[[nodiscard]] std::string encode_path(std::string_view text);
/// The member as text: strings as they are, null or absent as "-", other kinds as JSON.
[[nodiscard]] std::string text_of(const Json& object, const char* key);
/// Prints "baton: …" on stderr.
void complain(std::string_view message);

/// Prints rows in columns as wide as their widest cell; the first row is the heading.
void print_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace baton::cli
