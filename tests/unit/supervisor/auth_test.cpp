#include "supervisor/auth.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "baton/base/encoding.hpp"

namespace baton::supervisor {
namespace {

using http::Access;
using Json = nlohmann::json;

constexpr const char* kSecret = "a secret of the test, long enough";

class AuthTest : public ::testing::Test {
  protected:
    AuthTest() : path_(std::filesystem::temp_directory_path() / ("baton-auth-" + random_hex(8) + ".json")) {}
    ~AuthTest() override { std::filesystem::remove(path_); }

    void write(const Json& users, const char* secret = kSecret) {
        std::ofstream(path_) << Json{{"auth_config", {{"algorithm", "HS256"}, {"secret_key", secret}, {"token_expire_in_minutes", 30}}}, {"user_config", users}};
    }
    static Json users() {
        return Json::parse(R"([{"username":"ann","password":"pa","permissions":["admin"],"api_keys":["sk-ann"]},
                               {"username":"bob","password":"pb","permissions":["models:list"],"api_keys":["sk-bob"]},
                               {"username":"eve","password":"pe","permissions":["models:write","models:read"]}])");
    }
    std::unique_ptr<Auth> load(Bans::Rule rule = {.failures_max = 0}) {
        auto auth = Auth::load(path_.string(), rule);
        EXPECT_TRUE(auth) << auth.error().message;
        return auth ? std::move(*auth) : nullptr;
    }
    static std::optional<http::Permissions> rights(const std::unique_ptr<Auth>& auth, std::string_view key) { return auth->check(key, "10.0.0.1").permissions; }
    /// A token as anybody could make it who knows `secret`.
    static std::string forged(const Json& header, const Json& claims, const std::string& secret) {
        const std::string text = to_base64url(header.dump()) + "." + to_base64url(claims.dump());
        const Digest mac = hmac_sha256(secret, std::as_bytes(std::span(text.data(), text.size())));
        return text + "." + to_base64url({reinterpret_cast<const char*>(mac.data()), mac.size()});
    }
    static Json claims_of(const std::string& token) {
        const size_t first = token.find('.'), second = token.rfind('.');
        return Json::parse(*from_base64url(token.substr(first + 1, second - first - 1)));
    }
    const std::filesystem::path path_;
};

TEST_F(AuthTest, KeysListAndUseModelsWhateverTheirUserMayDo) {
    write(users());
    const auto auth = load();
    const auto ann = rights(auth, "sk-ann");
    ASSERT_TRUE(ann);
    EXPECT_TRUE(ann->allow(Access::kList) && ann->allow(Access::kInference) && ann->limited_key);
    EXPECT_FALSE(ann->allow(Access::kAdmin) || ann->allow(Access::kStart));
    const auto bob = rights(auth, "sk-bob");
    ASSERT_TRUE(bob);
    EXPECT_TRUE(bob->allow(Access::kList));
    EXPECT_FALSE(bob->allow(Access::kInference));
    for (const char* none : {"", "sk-", "sk-ann ", "SK-ANN", "pa", "ann"}) EXPECT_FALSE(rights(auth, none)) << none;
    EXPECT_EQ(auth->counts().key_requests, 2u);
}

TEST_F(AuthTest, ALoginGivesATokenWithTheUsersRights) {
    write(users());
    const auto auth = load();
    const auto tokens = auth->log_in("eve", "pe", "::1");
    ASSERT_TRUE(tokens) << tokens.error().message;
    const auto eve = rights(auth, tokens->access);
    ASSERT_TRUE(eve);
    EXPECT_TRUE(eve->allow(Access::kStart) && eve->allow(Access::kStop) && eve->allow(Access::kInference));
    EXPECT_FALSE(eve->allow(Access::kList) || eve->allow(Access::kAdmin) || eve->limited_key);
    EXPECT_FALSE(rights(auth, tokens->refresh)) << "a refresh token opens nothing by itself";
    const auto again = auth->refresh(tokens->refresh);
    ASSERT_TRUE(again);
    EXPECT_TRUE(rights(auth, again->access));
    EXPECT_FALSE(auth->refresh(tokens->access));
    const Json claims = claims_of(tokens->access);
    EXPECT_NEAR(static_cast<double>(claims["exp"].get<int64_t>()), static_cast<double>(std::time(nullptr) + 1800), 5);
}

TEST_F(AuthTest, WrongPasswordsAndUnknownUsersGetOneAnswerAndThenNone) {
    write(users());
    const auto auth = load();
    for (int i = 0; i < 5; ++i) {
        for (const auto& [user, password] : {std::pair{"ann", "pb"}, std::pair{"nobody", "pa"}}) {
            const auto r = auth->log_in(user, password, "10.0.0.9");
            ASSERT_FALSE(r);
            EXPECT_EQ(r.error().code, ErrorCode::kUnauthorized);
            EXPECT_EQ(r.error().message, "Incorrect username or password");
        }
    }
    const auto r = auth->log_in("ann", "pa", "10.0.0.9");
    ASSERT_FALSE(r) << "even the right one, after ten wrong ones";
    EXPECT_EQ(r.error().code, ErrorCode::kOverloaded);
    EXPECT_TRUE(auth->log_in("ann", "pa", "10.0.0.8")) << "from elsewhere it is another matter";
}

TEST_F(AuthTest, ForgedTokensOpenNothing) {
    write(users());
    const auto auth = load();
    const auto tokens = auth->log_in("ann", "pa", "::1");
    ASSERT_TRUE(tokens);
    const Json claims = claims_of(tokens->access);
    const Json header = {{"alg", "HS256"}, {"typ", "JWT"}};
    ASSERT_TRUE(rights(auth, forged(header, claims, kSecret))) << "the test's own tokens are right";
    const auto changed = [&](const char* key, const Json& value) {
        Json out = claims;
        out[key] = value;
        return out;
    };
    const int64_t now = std::time(nullptr);
    EXPECT_FALSE(rights(auth, forged(header, claims, "another secret")));
    EXPECT_FALSE(rights(auth, forged({{"alg", "none"}}, claims, kSecret)));
    EXPECT_FALSE(rights(auth, forged({{"alg", "HS512"}}, claims, kSecret)));
    EXPECT_FALSE(rights(auth, forged(Json::array(), claims, kSecret)));
    EXPECT_FALSE(rights(auth, forged(header, Json::array(), kSecret)));
    EXPECT_FALSE(rights(auth, forged(header, changed("exp", now - 1), kSecret)));
    EXPECT_FALSE(rights(auth, forged(header, changed("exp", "never"), kSecret)));
    EXPECT_FALSE(rights(auth, forged(header, changed("exp", 1e18), kSecret)));
    EXPECT_FALSE(rights(auth, forged(header, changed("sub", "nobody"), kSecret)));
    EXPECT_FALSE(rights(auth, forged(header, changed("sub", 7), kSecret)));
    EXPECT_FALSE(rights(auth, forged(header, changed("typ", "refresh"), kSecret)));
    EXPECT_FALSE(rights(auth, forged(header, changed("mark", ""), kSecret)));
    const size_t dot = tokens->access.rfind('.');
    for (const std::string& wrong : {tokens->access.substr(0, dot), tokens->access.substr(0, dot + 1), tokens->access + "A", "." + tokens->access,
                                     std::string(".."), std::string("."), std::string(5000, 'a'), tokens->access.substr(dot)})
        EXPECT_FALSE(rights(auth, wrong)) << wrong;
    for (size_t i = 0; i < tokens->access.size(); ++i) {
        std::string flipped = tokens->access;
        flipped[i] = flipped[i] == 'A' ? 'B' : 'A';
        EXPECT_FALSE(rights(auth, flipped)) << i;
    }
}

TEST_F(AuthTest, AReloadTakesRightsAwayAndAFaultChangesNothing) {
    write(users());
    const auto auth = load();
    const auto ann = auth->log_in("ann", "pa", "::1"), bob = auth->log_in("bob", "pb", "::1"), eve = auth->log_in("eve", "pe", "::1");
    ASSERT_TRUE(ann && bob && eve);
    Json next = users();
    next[0]["password"] = "new";                                // ann
    next[1]["permissions"] = Json::array({"models:read"});      // bob
    next.erase(2);                                              // eve
    write(next);
    ASSERT_TRUE(auth->reload());
    EXPECT_FALSE(rights(auth, ann->access)) << "the password changed";
    EXPECT_FALSE(rights(auth, eve->access)) << "the user is gone";
    const auto now = rights(auth, bob->access);
    ASSERT_TRUE(now);
    EXPECT_TRUE(now->allow(Access::kInference));
    EXPECT_FALSE(now->allow(Access::kList));
    std::ofstream(path_) << "{";
    EXPECT_FALSE(auth->reload());
    EXPECT_TRUE(rights(auth, bob->access));
    std::filesystem::remove(path_);
    EXPECT_FALSE(auth->reload());
    EXPECT_TRUE(rights(auth, "sk-ann"));
    write(next, "another secret of the test");
    ASSERT_TRUE(auth->reload());
    EXPECT_FALSE(rights(auth, bob->access)) << "signed with the old secret";
}

TEST_F(AuthTest, KeysExpireAndAreSwitchedOff) {
    Json all = users();
    const int64_t now = std::time(nullptr);
    all[0]["api_keys"] = Json::array({"sk-ever", {{"key", "sk-old"}, {"expires_at", "2020-01-31T12:00:00"}}, {{"key", "sk-off"}, {"enabled", false}},
                                      {{"key", "sk-new"}, {"expires_at", "2999-01-31 12:00:00.5+00:00"}, {"name", "laptop"}}, {{"key", "sk-soon"}, {"expires_at", now + 3600}}});
    write(all);
    const auto auth = load();
    for (const char* good : {"sk-ever", "sk-new", "sk-soon"}) EXPECT_TRUE(rights(auth, good)) << good;
    const auto old = auth->check("sk-old", "10.0.0.1"), off = auth->check("sk-off", "10.0.0.1");
    EXPECT_FALSE(old.permissions || off.permissions);
    EXPECT_EQ(old.status, 401);
    EXPECT_EQ(old.message, "API key has expired");
    EXPECT_EQ(off.message, "API key is disabled");
    EXPECT_EQ(auth->counts().keys_active, 4u) << "bob's too";
    EXPECT_EQ(auth->counts().keys_expired, 1u);
}

TEST_F(AuthTest, AnAddressThatGuessesIsBannedAndNoOther) {
    write(users());
    const auto auth = load({.failures_max = 3});
    const auto tokens = auth->log_in("ann", "pa", "10.0.0.2");
    ASSERT_TRUE(tokens);
    // A key that was taken out, a token that has expired: no guesses.
    Json claims = claims_of(tokens->access);
    claims["exp"] = std::time(nullptr) - 1;
    const std::string stale = forged({{"alg", "HS256"}, {"typ", "JWT"}}, claims, kSecret);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(auth->check(stale, "10.0.0.1").status, 401);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(auth->check("sk-guess", "10.0.0.1").status, 401) << i;
    const auto banned = auth->check("sk-ann", "10.0.0.1");
    EXPECT_EQ(banned.status, 429);
    EXPECT_FALSE(banned.permissions);
    EXPECT_GT(banned.retry_after_s, 590);
    EXPECT_LE(banned.retry_after_s, 600);
    EXPECT_TRUE(auth->check("sk-ann", "10.0.0.2").permissions);
    EXPECT_EQ(auth->counts().banned_addresses, 1u);
}

TEST_F(AuthTest, AKeyThatIsNoLongerGoodIsBannedWhereItIsUsed) {
    Json all = users();
    all[1]["api_keys"] = Json::array({{{"key", "sk-bob"}, {"enabled", false}}});
    write(all);
    const auto auth = load({.failures_max = 3});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(auth->check("sk-bob", "10.0.0.1").status, 401);
    EXPECT_EQ(auth->check("sk-bob", "10.0.0.1").status, 429);
    EXPECT_EQ(auth->check("sk-bob", "10.0.0.2").status, 401);
    EXPECT_TRUE(auth->check("sk-ann", "10.0.0.1").permissions) << "the address itself is not banned";
    EXPECT_EQ(auth->counts().banned_keys, 1u);
    EXPECT_EQ(auth->counts().banned_addresses, 0u);
}

TEST_F(AuthTest, TheLoginLockSaysHowLongItLasts) {
    write(users());
    const auto auth = load();
    EXPECT_EQ(auth->login_locked_s("10.0.0.1"), 0);
    for (int i = 0; i < 10; ++i) EXPECT_FALSE(auth->log_in("ann", "no", "10.0.0.1"));
    EXPECT_GT(auth->login_locked_s("10.0.0.1"), 50);
    EXPECT_LE(auth->login_locked_s("10.0.0.1"), 60);
    const auto refused = auth->log_in("ann", "pa", "10.0.0.1");
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find(" s"), std::string::npos);
    EXPECT_EQ(auth->login_locked_s("10.0.0.2"), 0);
}

}  // namespace
}  // namespace baton::supervisor
