#include "baton/config/settings.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "baton/config/replica_settings.hpp"

namespace baton::config {
namespace {

using ::testing::HasSubstr;

std::string file_error(const std::string& json) {
    SupervisorSettings s;
    const auto r = apply_file(s, json);
    return r ? "accepted" : r.error().message;
}

TEST(SupervisorSettings, FileSetsFields) {
    SupervisorSettings s;
    ASSERT_TRUE(apply_file(s, R"({"host":"0.0.0.0","port":0,"api_keys":["a","b"],"log_format":"json","snapshot_bytes":5000000000,
        "strict_fields":true,"deployments":[{"model_name":"m","model_engine":"baton"}]})"));
    EXPECT_EQ(s.host, "0.0.0.0");
    EXPECT_EQ(s.port, 0);
    EXPECT_EQ(s.api_keys, (std::vector<std::string>{"a", "b"}));
    EXPECT_EQ(s.snapshot_bytes, 5'000'000'000u);
    EXPECT_TRUE(s.strict_fields);
    ASSERT_EQ(s.deployments.size(), 1u);
    ASSERT_TRUE(check(s));
    EXPECT_FALSE(s.state_dir.empty());
    EXPECT_FALSE(s.cache_dir.empty());
}

TEST(SupervisorSettings, FileErrorsNameThePath) {
    EXPECT_EQ(file_error(R"({"prot":1})"), "/prot is not a setting");
    EXPECT_EQ(file_error(R"({"port":"1"})"), "/port must be an integer, got a string");
    EXPECT_EQ(file_error(R"({"port":65536})"), "/port must be a number of 0 to 65535, got 65536");
    EXPECT_EQ(file_error(R"({"port":-1})"), "/port must be a number of 0 to 65535, got -1");
    EXPECT_EQ(file_error(R"({"api_keys":["a",5]})"), "/api_keys[1] must be a string, got an integer");
    EXPECT_EQ(file_error(R"({"deployments":["x"]})"), "/deployments[0] must be an object, got a string");
    EXPECT_EQ(file_error(R"({"strict_fields":"yes"})"), "/strict_fields must be true or false, got a string");
    EXPECT_EQ(file_error(R"({"port":1,"host":"a","port":1})"), "'/port' stands there twice");
    EXPECT_EQ(file_error(R"({"deployments":[{"model_name":"m","envs":{"A":"1","B":"2","A":"3"}}]})"), "'/deployments/envs/A' stands there twice");
    EXPECT_EQ(file_error(R"({"deployments":[{"model_name":"m","model_engine":"baton"},{"model_name":"n","model_engine":"baton"}]})"), "accepted");
    EXPECT_THAT(file_error("{"), HasSubstr("malformed JSON"));
    EXPECT_EQ(file_error("{\n  \"port\": 1,\n  \"host\" 5\n}"), "malformed JSON at line 3, column 10");
    EXPECT_EQ(file_error("{]"), "malformed JSON at line 1, column 2");
    for (const char* nothing : {"", " \n\t\r\n"}) EXPECT_THAT(file_error(nothing), HasSubstr("the file is empty"));
    EXPECT_THAT(file_error("[]"), HasSubstr("must be a JSON object"));
}

TEST(SupervisorSettings, TwoDeploymentsOfOneUidAreRefused) {
    const auto check_of = [](std::initializer_list<const char*> bodies) -> std::string {
        SupervisorSettings s;
        for (const char* body : bodies) s.deployments.emplace_back(body);
        const auto ok = check(s);
        return ok ? "good" : ok.error().message;
    };
    constexpr const char* kM = R"({"model_name":"m","model_engine":"baton"})";
    constexpr const char* kN = R"({"model_name":"n","model_engine":"baton"})";
    constexpr const char* kMAsN = R"({"model_name":"m","model_uid":"n","model_engine":"baton"})";
    EXPECT_EQ(check_of({kM, kN}), "good");
    EXPECT_EQ(check_of({kM, kMAsN}), "good");
    EXPECT_EQ(check_of({kM, kN, kM}), "deployments[2] has the uid 'm' of deployments[0]: give one of them another model_uid");
    EXPECT_EQ(check_of({kMAsN, kN}), "deployments[1] has the uid 'n' of deployments[0]: give one of them another model_uid");
}

TEST(SupervisorSettings, EnvironmentComesAfterTheFile) {
    SupervisorSettings s;
    ASSERT_TRUE(apply_file(s, R"({"port":1,"host":"a"})"));
    ::setenv("BATON_PORT", "77", 1);
    ::setenv("BATON_API_KEYS", "x,y", 1);
    ASSERT_TRUE(apply_environment(s));
    EXPECT_EQ(s.port, 77);
    EXPECT_EQ(s.host, "a");
    EXPECT_EQ(s.api_keys, (std::vector<std::string>{"x", "y"}));
    ::setenv("BATON_PORT", "7x", 1);
    const auto bad = apply_environment(s);
    ASSERT_FALSE(bad);
    EXPECT_THAT(bad.error().message, HasSubstr("BATON_PORT"));
    ::unsetenv("BATON_PORT");
    ::unsetenv("BATON_API_KEYS");
}

TEST(SupervisorSettings, ChecksBetweenFields) {
    const auto error = [](auto change) {
        SupervisorSettings s;
        change(s);
        const auto r = check(s);
        return r ? std::string("accepted") : r.error().message;
    };
    EXPECT_EQ(error([](auto&) {}), "accepted");
    EXPECT_THAT(error([](auto& s) { s.log_level = "loud"; }), HasSubstr("log_level"));
    EXPECT_THAT(error([](auto& s) { s.log_format = "xml"; }), HasSubstr("log_format"));
    EXPECT_THAT(error([](auto& s) { s.api_keys = {"has space"}; }), HasSubstr("api_keys"));
    EXPECT_THAT(error([](auto& s) { s.advertise_address = "0.0.0.0"; }), HasSubstr("advertise_address"));
    EXPECT_THAT(error([](auto& s) { s.link_address = "10.0.0.1:9998"; }), HasSubstr("link_secret"));
    EXPECT_THAT(error([](auto& s) { s.link_address = "10.0.0.1"; s.link_secret = "0123456789abcdef"; }), HasSubstr("link_address"));
    EXPECT_EQ(error([](auto& s) { s.link_secret = "fifteen letters"; }), "link_secret must have at least 16 characters");
    EXPECT_EQ(error([](auto& s) { s.link_secret = "sixteen letters."; }), "accepted");
    EXPECT_THAT(error([](auto& s) { s.http_threads = 0; }), HasSubstr("http_threads"));
    EXPECT_THAT(error([](auto& s) { s.model_root = "relative"; }), HasSubstr("model_root"));
    EXPECT_THAT(error([](auto& s) { s.deployments = {R"({"model_name":""})"}; }),
                HasSubstr("deployments[0] is wrong: Invalid input. Please specify the `model_name` field."));
}

TEST(SupervisorSettings, CacheFolderIsPutIntoModelPaths) {
    SupervisorSettings s;
    s.cache_dir = "/c";
    s.deployments = {R"({"model_name":"m","model_engine":"baton","model_path":"${cache_dir}/x.gguf"})"};
    ASSERT_TRUE(check(s));
    EXPECT_THAT(s.deployments[0], HasSubstr("\"/c/x.gguf\""));
}

TEST(SupervisorSettings, DocumentationNamesEverySetting) {
    const std::string text = describe_settings_markdown();
    for (const char* word : {"`host`", "`BATON_PORT`", "`--state-dir`", "`link_secret`", "`deployments`", "`snapshot_bytes`"})
        EXPECT_THAT(text, HasSubstr(word));
}

TEST(SupervisorSettings, EverySettingIsShownAndNoSecret) {
    SupervisorSettings s;
    s.api_keys = {"the-first-key", "the-second-key"};
    s.inference_api_keys = {"the-third-key"};
    s.link_secret = "the-secret-of-the-links";
    s.hub_token = "the-token-of-the-hub";
    s.auth_file = "/etc/users.json";
    s.deployments = {R"({"model_name":"m"})"};
    const std::string text = show_settings(s);
    // The first column of the table of settings names them all.
    const std::string table = describe_settings_markdown();
    size_t names = 0;
    for (size_t at = table.find("\n| `"); at != std::string::npos && std::islower(static_cast<unsigned char>(table[at + 4])) != 0; at = table.find("\n| `", at + 1), ++names)
        EXPECT_THAT(text, HasSubstr('"' + table.substr(at + 4, table.find('`', at + 4) - at - 4) + '"'));
    EXPECT_GT(names, 25u);
    for (const char* shown : {R"-("link_secret": "(not shown)")-", R"-("hub_token": "(not shown)")-", R"("auth_file": "/etc/users.json")", R"("model_name": "m")"})
        EXPECT_THAT(text, HasSubstr(shown));
    EXPECT_THAT(text, testing::Not(HasSubstr("the-")));
    // It is no configuration: nobody must start a server with these as its keys.
    SupervisorSettings again;
    const auto taken = apply_file(again, text);
    ASSERT_FALSE(taken);
    EXPECT_THAT(taken.error().message, HasSubstr("api_keys[0] is a secret that `config show` does not show"));
}

TEST(SupervisorSettings, WhatIsShownIsAConfigurationWhereThereAreNoSecrets) {
    SupervisorSettings s;
    s.port = 1234;
    s.cors_origins = {"https://a.example"};
    s.deployments = {R"({"model_engine":"baton","model_name":"m"})"};
    ASSERT_TRUE(check(s));
    SupervisorSettings again;
    const auto taken = apply_file(again, show_settings(s));
    ASSERT_TRUE(taken) << taken.error().message;
    ASSERT_TRUE(check(again));
    EXPECT_TRUE(changed_settings(s, again).empty()) << testing::PrintToString(changed_settings(s, again));
}

TEST(SupervisorSettings, AnErrorHasTheValueThatIsWrong) {
    const std::vector<std::pair<std::string, std::string>> wrong = {{"log_level", "verbose"}, {"log_format", "xml"}, {"http_threads", "65"}, {"text_threads", "0"}, {"port", "65536"},
                                                                    {"advertise_address", "host"}, {"link_address", "host"}, {"model_root", "models"}, {"download_hub", "x"}, {"shutdown_timeout_ms", "-1"}};
    for (const auto& [key, value] : wrong) {
        const bool number = std::isdigit(static_cast<unsigned char>(value.back())) != 0;
        for (const std::string& json : {"{\"" + key + "\": " + (number ? value : "\"" + value + "\"") + "}", std::string()}) {
            SupervisorSettings s;
            auto taken = json.empty() ? apply_text(s, key, value) : apply_file(s, json);
            if (taken) taken = check(s);
            ASSERT_FALSE(taken) << key;
            EXPECT_THAT(taken.error().message, testing::AllOf(HasSubstr(key), HasSubstr("got "), HasSubstr(value))) << key;
        }
    }
}

std::string random_text(std::mt19937_64& random) {
    static constexpr std::string_view kLetters = "abc/ -=:.\"'\\äß\t";
    std::string out;
    for (size_t n = random() % 12; n > 0; --n) out += kLetters[random() % kLetters.size()];
    return out;
}

TEST(ReplicaSettings, ArgumentsRoundTrip) {
    std::mt19937_64 random(7);
    const auto coin = [&] { return random() % 2 == 0; };
    for (int i = 0; i < 2000; ++i) {
        ReplicaSettings s;
        s.model_uid = "u" + random_text(random);
        s.model_path = "/" + random_text(random);
        s.replica = {random() | 1};
        s.epoch = {random() | 1};
        s.role = static_cast<Role>(random() % 3);
        s.supervisor_unix = "s" + random_text(random);
        if (coin()) s.supervisor_tcp = random_text(random);
        if (coin()) s.worker_unix = random_text(random);
        if (coin()) s.listen_unix = random_text(random);
        if (coin()) s.listen_tcp_ip = random_text(random);
        if (coin()) s.host_id = random_text(random);
        if (coin()) s.threads = static_cast<uint32_t>(random() % 1025);
        if (coin()) s.kv_cache_bytes = random();
        if (coin()) s.block_tokens = static_cast<uint32_t>(1 + random() % 256);
        if (coin()) s.max_model_len = static_cast<uint32_t>(random());
        if (coin()) s.max_num_seqs = static_cast<uint32_t>(1 + random() % 4096);
        if (coin()) s.max_num_batched_tokens = static_cast<uint32_t>(1 + random() % 65536);
        s.prefix_cache = coin();
        s.kv_dtype = coin() ? "bf16" : "f32";
        s.kv_layout = coin() ? "block" : "kv";
        s.mover = coin() ? "" : "tcp";
        if (coin()) s.device = "cuda:" + std::to_string(random() % 16);
        s.dtype = coin() ? "bf16" : "f16";
        if (coin()) s.gpu_memory_ppm = static_cast<uint32_t>(random() % 1'000'001);
        if (coin()) s.gpu_memory_bytes = random();
        s.deterministic = coin();
        s.verify_handoff = coin();
        s.snapshots = coin();
        s.snapshot_read_always = coin();
        if (coin()) s.isa = "avx2";
        s.log_level = coin() ? "info" : "debug";
        s.log_format = coin() ? "text" : "json";
        if (coin()) s.fault = random_text(random);
        const auto back = parse_replica_args(to_args(s));
        ASSERT_TRUE(back) << back.error().message;
        ASSERT_EQ(*back, s);
    }
}

TEST(ReplicaSettings, DeviceNamesTheCpuOrAGpu) {
    const auto with = [](const std::string& device) {
        return parse_replica_args({"--model-uid", "m", "--model-path", "/m", "--replica", "1", "--epoch", "1", "--supervisor-socket",
                                   "/s", "--device", device});
    };
    ASSERT_TRUE(with("cpu"));
    EXPECT_EQ(gpu_of(*with("cpu")), std::nullopt);
    ASSERT_TRUE(with("cuda:3"));
    EXPECT_EQ(gpu_of(*with("cuda:3")), 3u);
    for (const char* wrong : {"", "cuda", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "CUDA:1", "gpu:0", "cuda:99999999999"}) EXPECT_FALSE(with(wrong)) << wrong;
}

TEST(ReplicaSettings, OnlyDifferencesAreWrittenButRoleAndUidAlways) {
    ReplicaSettings s;
    s.model_uid = "m";
    EXPECT_EQ(to_args(s), (std::vector<std::string>{"--role", "hybrid", "--model-uid", "m", "--replica", "0", "--epoch", "0"}));
}

TEST(ReplicaSettings, WrongArgumentsAreNamed) {
    ReplicaSettings s;
    s.model_uid = "m";
    s.model_path = "/p";
    s.replica = {1};
    s.epoch = {1};
    s.supervisor_unix = "/s";
    const auto error = [&](std::vector<std::string> extra) {
        auto args = to_args(s);
        args.insert(args.end(), extra.begin(), extra.end());
        const auto r = parse_replica_args(args);
        return r ? std::string("accepted") : r.error().message;
    };
    EXPECT_EQ(error({}), "accepted");
    EXPECT_EQ(error({"--threads=4"}), "accepted");
    EXPECT_EQ(error({"--what", "1"}), "unknown argument --what");
    EXPECT_EQ(error({"--threads"}), "argument --threads has no value");
    EXPECT_EQ(error({"--threads", "-1"}), "--threads has a wrong value: -1");
    EXPECT_EQ(error({"--threads", "4x"}), "--threads has a wrong value: 4x");
    EXPECT_EQ(error({"--kv-dtype", "int8"}), "--kv-dtype has a wrong value: int8");
    EXPECT_EQ(error({"--role", "boss"}), "--role has a wrong value: boss");
    EXPECT_EQ(error({"--prefix-cache", "1"}), "--prefix-cache has a wrong value: 1");
    EXPECT_EQ(error({"--block-tokens", "0"}), "--block-tokens is out of range");
    s.epoch = {0};
    EXPECT_EQ(error({}), "argument --epoch is missing");
}

TEST(WorkerSettings, ArgumentsRoundTripWithoutTheSecret) {
    WorkerSettings s;
    s.supervisor_unix = "/s";
    s.run_dir = "/r";
    s.worker_port = 9001;
    s.child_of_supervisor = true;
    s.share_weights = false;
    s.link_secret = "secret";
    const auto args = to_args(s);
    for (const auto& a : args) EXPECT_THAT(a, ::testing::Not(HasSubstr("secret")));
    const auto back = parse_worker_args(args);
    ASSERT_TRUE(back);
    EXPECT_EQ(back->worker_port, 9001);
    EXPECT_TRUE(back->child_of_supervisor);
    EXPECT_FALSE(back->share_weights);
    EXPECT_TRUE(check(*back));
}

TEST(WorkerSettings, SharingIsSwitchedOffByEitherDoor) {
    for (const char* environment : {static_cast<const char*>(nullptr), "true", "false"})
        for (const bool argument : {true, false}) {
            ::unsetenv("BATON_SHARE_WEIGHTS");
            if (environment != nullptr) ::setenv("BATON_SHARE_WEIGHTS", environment, 1);
            WorkerSettings s;
            s.share_weights = argument;
            EXPECT_TRUE(apply_environment(s));
            EXPECT_EQ(s.share_weights, argument && (environment == nullptr || std::string_view(environment) == "true"));
        }
    ::setenv("BATON_SHARE_WEIGHTS", "no", 1);
    WorkerSettings s;
    EXPECT_THAT(apply_environment(s).error().message, HasSubstr("BATON_SHARE_WEIGHTS must be true or false"));
    ::unsetenv("BATON_SHARE_WEIGHTS");
}

TEST(WorkerSettings, ChecksWhereTheSupervisorIs) {
    WorkerSettings s;
    EXPECT_FALSE(check(s));
    s.supervisor_tcp = "host:9998";
    EXPECT_THAT(check(s).error().message, HasSubstr("BATON_LINK_SECRET"));
    s.link_secret = "fifteen letters";
    EXPECT_THAT(check(s).error().message, HasSubstr("BATON_LINK_SECRET must have at least 16 characters"));
    s.link_secret = "sixteen letters.";
    EXPECT_TRUE(check(s));
    s.advertise_ip = "0.0.0.0";
    EXPECT_FALSE(check(s));
    s.advertise_ip = "";
    s.supervisor_tcp = "host";
    EXPECT_FALSE(check(s));
}

}  // namespace
}  // namespace baton::config
