#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "cli/commands.hpp"
#include "cli/credentials.hpp"

namespace baton::cli {
namespace {

constexpr const char* kPair = R"([{"role": "prefill", "devices": [{"worker_ip": "1.2.3.4:5", "n_gpu": 0}]},
                                  {"role": "decode", "devices": [{"worker_ip": "1.2.3.4:5", "n_gpu": 0}]}])";

LaunchOptions named() {
    LaunchOptions o;
    o.model_name = "m";
    o.model_engine = "vLLM";
    return o;
}

std::string refused(const LaunchOptions& o) {
    const auto body = make_launch_body(o);
    return body ? "" : body.error().message;
}

TEST(LaunchBody, HasTheReferencesFields) {
    LaunchOptions o = named();
    o.size_in_billions = "0_5";
    o.n_gpu = "None";
    o.gpu_idx = "0, 2";
    o.extras = {"--max_model_len", "2048", "--foo-bar", "1", "--gpu_memory_utilization=0.5", "--request-limits", "3", "--flag", "True",
                "--gone", "None", "--list", "[1,2]", "--text", "{no json", "--big", "99999999999999999999", "--neg", "-1"};
    const auto body = make_launch_body(o);
    ASSERT_TRUE(body) << body.error().message;
    EXPECT_EQ(*body, Json::parse(R"({"model_name": "m", "model_type": "LLM", "model_engine": "vLLM", "model_size_in_billions": "0_5",
        "n_worker": 1, "replica": 1, "n_gpu": null, "gpu_idx": [0, 2], "max_model_len": 2048, "foo-bar": 1,
        "gpu_memory_utilization": 0.5, "request_limits": 3, "flag": true, "gone": null, "list": [1, 2], "text": "{no json",
        "big": 1e20, "neg": -1})"));
    o.size_in_billions = "7";
    EXPECT_EQ((*make_launch_body(o))["model_size_in_billions"], 7);
}

TEST(LaunchBody, PassesOnWhatTheReferencesClientHas) {
    LaunchOptions o = named();
    o.context_length = 4096;
    o.enable_thinking = false;
    o.env = {"A", "1", "B", "2"};
    o.lora_modules = {"l", "/p"};
    o.quantization_config = {"load_in_4bit", "True"};
    const Json body = *make_launch_body(o);
    EXPECT_EQ(body["context_length"], 4096);
    EXPECT_EQ(body["enable_thinking"], false);
    EXPECT_EQ(body["envs"], Json::parse(R"({"A": "1", "B": "2"})"));
    EXPECT_EQ(body["peft_model_config"]["lora_list"][0]["local_path"], "/p");
    EXPECT_EQ(body["quantization_config"]["load_in_4bit"], true);
    EXPECT_FALSE(body.contains("trust_remote_code"));
}

TEST(LaunchBody, ReplicaConfigSetsTheReplicas) {
    LaunchOptions o = named();
    o.replica_config = kPair;
    EXPECT_EQ((*make_launch_body(o))["replica"], 2);
    o.replica = 2;
    EXPECT_EQ(refused(o), "");
    const std::string path = testing::TempDir() + "/replicas-" + std::to_string(::getpid()) + ".json";
    std::ofstream(path) << kPair;
    o.replica_config = "@" + path;
    EXPECT_EQ((*make_launch_body(o))["replica_config"][1]["role"], "decode");
    std::filesystem::remove(path);
    EXPECT_NE(refused(o).find("cannot read"), std::string::npos);
}

// All of it is said before anything is sent.
TEST(LaunchBody, WrongReplicaConfigsAreRefused) {
    const auto with = [](const std::string& config) {
        LaunchOptions o = named();
        o.replica_config = config;
        return refused(o);
    };
    EXPECT_NE(with("[{").find("must be valid JSON"), std::string::npos);
    EXPECT_NE(with("{}").find("must be a JSON array"), std::string::npos);
    EXPECT_NE(with("[]").find("must be a non-empty JSON array"), std::string::npos);
    const std::string device = R"("devices": [{"worker_ip": "a:1"}])";
    EXPECT_NE(with("[{\"role\": \"prefill\", " + device + "}]").find("both prefill and decode"), std::string::npos);
    EXPECT_NE(with("[{\"role\": \"hybrid\", " + device + "}, {\"role\": \"decode\", " + device + "}]").find("both prefill and decode"), std::string::npos);
    EXPECT_NE(with("[{\"role\": \"x\", " + device + "}]").find("replica_config"), std::string::npos);
    EXPECT_NE(with("[{\"color\": 1, " + device + "}]").find("replica_config"), std::string::npos);
    EXPECT_NE(with(R"([{"devices": []}])").find("exactly one device"), std::string::npos);
    EXPECT_NE(with(R"([{"devices": [{"worker_ip": "a:1", "n_gpu": true}]}])").find("n_gpu"), std::string::npos);

    LaunchOptions o = named();
    o.replica_config = kPair;
    o.replica = 3;
    EXPECT_NE(refused(o).find("--replica (3) must match the number of entries in --replica-config (2)"), std::string::npos);
    o.replica.reset();
    o.worker_ip = "a:1";
    o.gpu_idx = "0";
    o.n_gpu = "1";
    o.n_worker = 2;
    EXPECT_EQ(refused(o), "--replica-config cannot be used together with --worker-ip, --gpu-idx, --n-gpu, --n-worker");
    o = named();
    o.replica_config = kPair;
    o.model_type = "embedding";
    EXPECT_NE(refused(o).find("PD separation requires model_type=LLM"), std::string::npos);
}

TEST(LaunchBody, RolesAreCounted) {
    LaunchOptions o = named();
    o.prefill = 1;
    o.decode = 2;
    Json body = *make_launch_body(o);
    EXPECT_EQ(body["replica"], 3);
    std::string roles;
    for (const Json& r : body["replica_config"]) {
        roles += r["role"].get<std::string>() + " ";
        EXPECT_EQ(r["devices"], Json::array({{{"worker_ip", ""}}})) << "the server places it";
    }
    EXPECT_EQ(roles, "prefill decode decode ");
    for (const auto& [given, sent] : {std::pair<const char*, Json>{"none", 0}, {"1", 1}}) {
        o.n_gpu = given;
        EXPECT_EQ((*make_launch_body(o))["replica_config"][2]["devices"][0]["n_gpu"], sent);
    }
    o.n_gpu = "some";
    EXPECT_NE(refused(o).find("--n-gpu"), std::string::npos);
    o.n_gpu.clear();
    o.replica_config = kPair;
    o.replica = 3;
    o.worker_ip = "a:1";
    o.gpu_idx = "0";
    o.n_worker = 2;
    EXPECT_EQ(refused(o), "--prefill and --decode cannot be used together with --replica-config, --replica, --worker-ip, --gpu-idx, --n-worker");
}

TEST(LaunchBody, WrongWordsAreUsageErrors) {
    LaunchOptions o;
    EXPECT_NE(refused(o).find("--model-name is required"), std::string::npos);
    for (const std::vector<std::string>& extras :
         std::vector<std::vector<std::string>>{{"stray"}, {"--key"}, {"--"}, {"--=x"}, {"--a", "1", "stray"}}) {
        o = named();
        o.extras = extras;
        EXPECT_NE(refused(o), "") << extras.back();
    }
    o = named();
    o.n_gpu = "many";
    EXPECT_NE(refused(o), "");
    o.n_gpu = "";
    o.gpu_idx = "0,x";
    EXPECT_NE(refused(o), "");
}

TEST(LaunchBody, APathNamesTheModel) {
    LaunchOptions o;
    for (const auto& [path, name] : std::initializer_list<std::pair<const char*, const char*>>{
             {"/m/Qwen2.5-7B.Q4.gguf", "Qwen2.5-7B.Q4"}, {"/m/Llama-3.2/", "Llama-3.2"}, {"/m/Llama-3.2", "Llama-3.2"}}) {
        o.model_path = path;
        EXPECT_EQ((*make_launch_body(o))["model_name"], name);
    }
}

class CredentialsTest : public testing::Test {
  protected:
    CredentialsTest() : folder_(testing::TempDir() + "/credentials-" + std::to_string(::getpid())) {
        ::setenv("XDG_CONFIG_HOME", folder_.c_str(), 1);
    }
    ~CredentialsTest() override {
        ::unsetenv("XDG_CONFIG_HOME");
        std::filesystem::remove_all(folder_);
    }
    const std::string folder_;
};

TEST_F(CredentialsTest, AreTheirOwnersAloneAndTheServersAlone) {
    const std::string url = "http://a:1";
    EXPECT_FALSE(load_credentials(url));
    ASSERT_TRUE(store_credentials(url, {"token", "again"}));
    const auto kept = load_credentials(url + "/");  // the same server
    ASSERT_TRUE(kept);
    EXPECT_EQ(kept->access_token, "token");
    EXPECT_EQ(kept->refresh_token, "again");
    EXPECT_FALSE(load_credentials("http://a:2"));
    using std::filesystem::perms;
    const auto mode = [](const std::string& path) { return std::filesystem::status(path).permissions() & perms::mask; };
    EXPECT_EQ(mode(credentials_path(url)), perms::owner_read | perms::owner_write);
    EXPECT_EQ(mode(folder_ + "/baton"), perms::owner_all);
    ASSERT_TRUE(store_credentials(url, {"new", ""}));
    EXPECT_EQ(load_credentials(url)->access_token, "new");
    std::ofstream(credentials_path(url)) << "{\"access_token\": 5}";
    EXPECT_FALSE(load_credentials(url));
    EXPECT_TRUE(forget_credentials(url));
    EXPECT_FALSE(forget_credentials(url));
}

TEST_F(CredentialsTest, AKeyThatIsGivenGoesAheadOfALogin) {
    ::unsetenv("BATON_API_KEY");
    ::unsetenv("XINFERENCE_API_KEY");
    ASSERT_TRUE(store_credentials("http://a:1", {"token", ""}));
    EXPECT_EQ(resolve_api_key({"http://a:1", ""}), "token");
    EXPECT_EQ(resolve_api_key({"http://a:1", "key"}), "key");
    EXPECT_EQ(resolve_api_key({"http://b:1", ""}), "");
}

}  // namespace
}  // namespace baton::cli
