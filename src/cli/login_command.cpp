#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "cli/commands.hpp"
#include "cli/credentials.hpp"

namespace baton::cli {
namespace {

bool ask_username(std::string& out) {
    std::fprintf(stderr, "Username: ");
    std::fflush(stderr);
    return static_cast<bool>(std::getline(std::cin, out)) && !out.empty();
}

}  // namespace

int run_login(const LoginOptions& options) {
    // Who logs in has no key yet, or one that is no longer good: it is not sent.
    http::ClientOptions client_options;
    client_options.base_url = resolve_endpoint(options.server);
    client_options.ca_file = resolve_ca_file(options.server);
    ClientSession session({client_options.base_url, "", client_options.ca_file});
    Json auth;
    if (!session.get("/v1/cluster/auth", auth)) return kFailed;
    if (const Json* on = member_of(auth, "auth"); on == nullptr || *on != true) {
        std::fprintf(stderr, "%s asks for no login\n", session.endpoint().c_str());
        return kDone;
    }
    LoginOptions who = options;
    if (who.username.empty() && !ask_username(who.username)) {
        complain("no user name was given");
        return kUsage;
    }
    if (who.password.empty() && !read_password("Password: ", who.password)) {
        complain("no password was given");
        return kUsage;
    }
    auto client = http::Client::create(client_options);
    if (!client) return kFailed;
    const auto response = (*client)->post("/token", Json{{"username", who.username}, {"password", who.password}}.dump(-1, ' ', false, Json::error_handler_t::replace));
    const Json answer = response ? Json::parse(response->body, nullptr, false) : Json();
    const Json* token = member_of(answer, "access_token");
    if (!response || response->status != 200 || token == nullptr || !token->is_string()) {
        complain(!response ? response.error().message
                           : member_of(answer, "detail") != nullptr ? text_of(answer, "detail")
                                                                    : "the server gives no token (status " + std::to_string(response->status) + ")");
        return kFailed;
    }
    const Json* refresh = member_of(answer, "refresh_token");
    if (auto kept = store_credentials(session.endpoint(), {token->get<std::string>(), refresh != nullptr && refresh->is_string() ? refresh->get<std::string>() : ""}); !kept) {
        complain(kept.error().message);
        return kFailed;
    }
    std::fprintf(stderr, "logged in to %s as %s\n", session.endpoint().c_str(), printable(who.username).c_str());
    return kDone;
}

int run_logout(const LoginOptions& options) {
    const std::string endpoint = resolve_endpoint(options.server);
    std::fprintf(stderr, forget_credentials(endpoint) ? "logged out of %s\n" : "there is no login to %s\n", endpoint.c_str());
    return kDone;
}

}  // namespace baton::cli
