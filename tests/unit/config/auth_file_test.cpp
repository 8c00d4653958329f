#include "baton/config/auth_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "baton/base/encoding.hpp"

namespace baton::config {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;
using ::testing::Not;

Json good() {
    return Json::parse(R"({"auth_config":{"algorithm":"HS256","secret_key":"09d25e094faa6ca2556c","token_expire_in_minutes":30},
        "user_config":[
          {"username":"ann","password":"secret1","permissions":["admin"],"api_keys":["sk-72tkvudyGLPMi","sk-ZOTLIY4gt9w11"]},
          {"username":"bob","password":"secret2","permissions":["models:list","models:read"],"api_keys":["sk-35tkasdyGLYMy"]}]})");
}

TEST(AuthFile, IsReadAsXinferenceWritesIt) {
    const auto file = parse_auth_file(good().dump());
    ASSERT_TRUE(file) << file.error().message;
    EXPECT_EQ(file->secret_key, "09d25e094faa6ca2556c");
    EXPECT_EQ(file->token_expire_minutes, 30);
    ASSERT_EQ(file->users.size(), 2u);
    EXPECT_EQ(file->users[0].permissions, static_cast<uint8_t>(Permission::kAdmin));
    EXPECT_EQ(file->users[1].permissions, 3);
    ASSERT_EQ(file->users[0].api_keys.size(), 2u);
    EXPECT_EQ(file->users[0].api_keys[0].text, "sk-72tkvudyGLPMi");
    EXPECT_TRUE(file->users[0].api_keys[0].enabled);
    EXPECT_FALSE(file->users[0].api_keys[0].expired(INT64_MAX));
}

TEST(AuthFile, EveryPermissionHasItsRights) {
    const std::pair<const char*, int> kCases[] = {{"models:list", 1},  {"models:read", 2},      {"models:start", 4},       {"models:stop", 8},
                                                  {"models:write", 12}, {"models:register", 48}, {"models:unregister", 32}, {"admin", 64}};
    for (const auto& [name, bits] : kCases) {
        Json json = good();
        json["user_config"][0]["permissions"] = Json::array({name});
        const auto file = parse_auth_file(json.dump());
        ASSERT_TRUE(file) << file.error().message;
        EXPECT_EQ(file->users[0].permissions, bits) << name;
    }
}

TEST(AuthFile, FaultsAreNamedByTheirPathAndRepeatNoSecret) {
    const std::pair<const char*, const char*> kCases[] = {
        {R"({"auth_config":null})", "/auth_config must be an object"},
        {R"({"auth_config":{"algorithm":"none"}})", "/auth_config/algorithm must be HS256"},
        {R"({"auth_config":{"secret_key":"short"}})", "/auth_config/secret_key must have at least 16 characters"},
        {R"({"auth_config":{"token_expire_in_minutes":0}})", "/auth_config/token_expire_in_minutes must be an integer of 1 to"},
        {R"({"user_config":[]})", "/user_config must be a list of 1 to"},
        {R"({"user_config":[7]})", "/user_config/0 must be an object"},
        {R"({"user_config":[{"username":"x"}]})", "/user_config/0/password is missing"},
        {R"({"user_config":[{"username":"x","password":""}]})", "/user_config/0/password must be a string that is not empty"},
        {R"({"user_config":[{"username":"x","password":"y","permissions":["root"]}]})", "/user_config/0/permissions/0 is not a permission: 'root'"},
        {R"({"user_config":[{"username":"x","password":"hidden","api_keys":["a b"]}]})", "/user_config/0/api_keys/0 must be a string without spaces"},
        {R"({"user_config":[{"username":"x","password":"hidden","api_keys":[{"key":""}]}]})", "/user_config/0/api_keys/0/key must be a string without spaces"},
        {R"({"user_config":[{"username":"x","password":"hidden","api_keys":[{"enabled":true}]}]})", "/user_config/0/api_keys/0/key is missing"},
        {R"({"user_config":[{"username":"x","password":"hidden","api_keys":[{"key":"hidden","until":1}]}]})", "/user_config/0/api_keys/0/until is not known"},
        {R"({"user_config":[{"username":"x","password":"hidden","api_keys":[{"key":"hidden","enabled":1}]}]})", "/user_config/0/api_keys/0/enabled must be true or false"},
        {R"({"user_config":[{"username":"x","password":"hidden","api_keys":[{"key":"hidden","expires_at":"2027-13-01T00:00:00"}]}]})",
         "/user_config/0/api_keys/0/expires_at must be a time"},
        {R"({"user_config":[{"username":"x","password":"hidden","api_keys":[{"key":"hidden","expires_at":"2027-12-01T00:00:00+02:00"}]}]})",
         "/user_config/0/api_keys/0/expires_at must be a time"},
        {R"({"user_config":[{"username":"x","password":"hidden","api_keys":[{"key":"hidden","expires_at":"tomorrow"}]}]})",
         "/user_config/0/api_keys/0/expires_at must be a time"},
        {R"({"user_config":[{"username":"x","password":"hidden"},{"username":"x","password":"y"}]})", "/user_config/1/username stands there twice"},
        {R"({"user_config":[{"username":"x","password":"hidden","api_keys":["hidden"]},{"username":"z","password":"y","api_keys":["hidden"]}]})",
         "/user_config/1/api_keys has a key that stands there twice"},
        {R"({"user_config":[{"username":"x","password":"pbkdf2_sha256$hidden"}]})", "/user_config/0/password must be pbkdf2_sha256$"},
    };
    for (const auto& [patch, message] : kCases) {
        Json json = good();
        json.merge_patch(Json::parse(patch));
        const auto file = parse_auth_file(json.dump());
        ASSERT_FALSE(file) << patch;
        EXPECT_THAT(file.error().message, HasSubstr(message)) << patch;
        EXPECT_THAT(file.error().message, Not(HasSubstr("hidden"))) << patch;
    }
    for (const char* text : {"", "[]", "{", "null"}) EXPECT_FALSE(parse_auth_file(text)) << text;
}

TEST(AuthFile, PasswordsMayBeHashed) {
    EXPECT_TRUE(password_matches("secret1", "secret1"));
    EXPECT_FALSE(password_matches("secret1", "secret2"));
    EXPECT_FALSE(password_matches("secret1", ""));
    const std::string stored = "pbkdf2_sha256$1000$salt$" + to_base64(pbkdf2_sha256("secret1", "salt", 1000));
    EXPECT_TRUE(password_matches(stored, "secret1"));
    EXPECT_FALSE(password_matches(stored, "secret2"));
    EXPECT_FALSE(password_matches(stored, stored)) << "what stands in the file is no password";
    Json json = good();
    json["user_config"][0]["password"] = stored;
    EXPECT_TRUE(parse_auth_file(json.dump()));
}

}  // namespace
}  // namespace baton::config
