#include "baton/config/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace baton::config {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::HasSubstr;

/// A body every check lets pass: one prefill and one decode replica on the CPU.
Json good_body() {
    return Json::parse(R"({"model_name":"m","model_uid":"u","model_engine":"vLLM","model_type":"LLM","replica":2,"n_worker":1,
        "n_gpu":"auto","worker_ip":null,"gpu_idx":null,"replica_config":[
        {"replica_uid":"P0","role":"prefill","devices":[{"worker_ip":"127.0.0.1:9000","n_gpu":0}]},
        {"replica_uid":"D0","role":"decode","devices":[{"worker_ip":"127.0.0.1:9000","n_gpu":0}]}]})");
}

Json ordinary_body() { return Json::parse(R"({"model_name":"m","model_uid":"u","model_engine":"baton"})"); }

std::string error_of(const Json& body, bool local_only = false) {
    const auto r = parse_launch(body.dump(), local_only);
    if (r) return "accepted";
    EXPECT_EQ(r.error().code, ErrorCode::kInvalidArgument);
    return r.error().message;
}

struct Row {
    const char* number;    ///< of the reference's table
    const char* patch;     ///< JSON merge patch on good_body(); a "$" key replaces replica_config[0]
    const char* message;
};

class ReplicaConfigRules : public ::testing::TestWithParam<Row> {};

TEST_P(ReplicaConfigRules, FailWithTheReferencesMessage) {
    Json body = good_body();
    const Json patch = Json::parse(GetParam().patch);
    for (const auto& [key, value] : patch.items()) {
        if (key == "$") body["replica_config"][0] = value;
        else if (key == "$device") body["replica_config"][0]["devices"][0] = value;
        else body[key] = value;
    }
    EXPECT_EQ(error_of(body), GetParam().message) << GetParam().patch;
}

constexpr const char* kConflict = "Cannot specify worker_ip / n_gpu / gpu_idx together with replica_config.";
constexpr const char* kRoles = "PD separation requires both prefill and decode replicas, without hybrid replicas";
constexpr const char* kUid =
    "The model UID is invalid. Please specify the model UID by 0 < length <= 100, not ending with the reserved replica "
    "suffix '-rep<number>'.";
const Row kRows[] = {
    {"1", R"({"replica":true})", "Invalid input. The `replica` field must be an integer, got a boolean."},
    {"2", R"({"replica":2.0})", "Invalid input. The `replica` field must be an integer, got a float."},
    {"3", R"({"replica":null})", "Invalid input. The `replica` field must be a valid integer."},
    {"3", R"({"replica":"two"})", "Invalid input. The `replica` field must be a valid integer."},
    {"3", R"({"replica":""})", "Invalid input. The `replica` field must be a valid integer."},
    {"3", R"({"replica":[2]})", "Invalid input. The `replica` field must be a valid integer."},
    {"4", R"({"replica":0})", "Invalid input. The `replica` field must be at least 1."},
    {"4", R"({"replica":-3})", "Invalid input. The `replica` field must be at least 1."},
    {"4", R"({"replica":"0"})", "Invalid input. The `replica` field must be at least 1."},
    {"4", R"({"replica":99999999999999999999})", "Invalid input. The `replica` field must be an integer, got a float."},
    {"4", R"({"replica":9999999999})", "Invalid input. The `replica` field must be at most 256."},
    {"5", R"({"worker_ip":"1.2.3.4:5"})", kConflict},
    {"5", R"({"gpu_idx":[]})", kConflict},
    {"5", R"({"n_gpu":1})", kConflict},
    {"5", R"({"n_gpu":null})", kConflict},
    {"6", R"({"replica_config":7})", "Invalid replica_config: it must be a list of objects"},
    {"6", R"({"replica_config":"[{"})", "Invalid replica_config: malformed JSON at byte 3"},
    {"6", R"({"$":5})", "Invalid replica_config: replica_config[0] must be an object"},
    {"6", R"({"$":{"devices":[],"model_engine":"x"}})",
     "Invalid replica_config: unknown key 'model_engine' in replica_config[0]"},
    {"6", R"({"$":{"role":"both","devices":[]}})", "Invalid replica_config: role must be 'hybrid', 'prefill' or 'decode', got 'both'"},
    {"6", R"({"$":{"role":"prefill"}})", "Invalid replica_config: devices must be a list of objects"},
    {"6", R"({"$device":{"worker_ip":"a:1","extra":1}})",
     "Invalid replica_config: unknown key 'extra' in replica_config[0].devices[0]"},
    {"6", R"({"$device":{"n_gpu":0}})", "Invalid replica_config: worker_ip must be a string"},
    {"6", R"({"$device":{"worker_ip":5}})", "Invalid replica_config: worker_ip must be a string"},
    {"6", R"({"$device":{"worker_ip":"a:1","n_gpu":true}})",
     "Invalid replica_config: n_gpu must be a non-negative integer or 'auto'"},
    {"6", R"({"$device":{"worker_ip":"a:1","n_gpu":"1"}})",
     "Invalid replica_config: n_gpu must be a non-negative integer or 'auto'"},
    {"6", R"({"$device":{"worker_ip":"a:1","n_gpu":0.9}})",
     "Invalid replica_config: n_gpu must be a non-negative integer or 'auto'"},
    {"6", R"({"$device":{"worker_ip":"a:1","n_gpu":-1}})",
     "Invalid replica_config: n_gpu must be a non-negative integer or 'auto'"},
    {"6", R"({"$device":{"worker_ip":"a:1","gpu_idx":0}})", "Invalid replica_config: gpu_idx must be a list of integers"},
    {"6", R"({"$device":{"worker_ip":"a:1","gpu_idx":[0,"1"]}})",
     "Invalid replica_config: gpu_idx must contain only integers"},
    {"6", R"({"$device":{"worker_ip":"a:1","gpu_idx":[true]}})",
     "Invalid replica_config: gpu_idx must contain only integers"},
    {"6", R"({"$device":{"worker_ip":"a:1","gpu_idx":[1,1]}})",
     "Invalid replica_config: gpu_idx must not contain duplicate indexes"},
    {"name", R"({"model_name":""})", "Invalid input. Please specify the `model_name` field."},
    {"name", R"({"model_name":null})", "Invalid input. Please specify the `model_name` field."},
    {"engine", R"({"model_engine":null})", "Invalid input. Please specify the `model_engine` field."},
    {"7", R"({"n_worker":0})", "n_worker must be a positive integer."},
    {"7", R"({"n_worker":true})", "n_worker must be a positive integer."},
    {"7", R"({"n_worker":"1"})", "n_worker must be a positive integer."},
    {"8", R"({"n_worker":2})", "replica_config is incompatible with n_worker>1 (sharded launch)."},
    {"9", R"({"model_engine":"xyz"})",
     "PD separation requires model_type=LLM and model_engine=baton, vLLM, SGLang, MLX, Transformers or llama.cpp"},
    {"9", R"({"model_type":"embedding"})",
     "PD separation requires model_type=LLM and model_engine=baton, vLLM, SGLang, MLX, Transformers or llama.cpp"},
    {"10", R"({"$":{"role":"decode","devices":[{"worker_ip":"a:1"}]}})", kRoles},
    {"10", R"({"$":{"devices":[{"worker_ip":"a:1"}]}})", kRoles},
    {"11", R"({"replica":3})", "replica_config length (2) must equal replica (3)."},
    {"11", R"({"replica":1})", "replica_config length (2) must equal replica (1)."},
    {"11", R"({"replica":1,"replica_config":[]})", "replica_config length (0) must equal replica (1)."},
    {"12", R"({"$":{"role":"prefill","devices":[]}})",
     "Each replica_config entry must have exactly one device (replica 0 has 0). Cross-worker sharding per replica is not "
     "supported yet."},
    {"12", R"({"$":{"role":"prefill","devices":[{"worker_ip":"a:1"},{"worker_ip":"b:1"}]}})",
     "Each replica_config entry must have exactly one device (replica 0 has 2). Cross-worker sharding per replica is not "
     "supported yet."},
    {"13", R"({"$device":{"worker_ip":"a:1","n_gpu":2,"gpu_idx":[0]}})",
     "replica_config[0].devices[0].n_gpu (2) must equal len(gpu_idx) (1), or be 'auto'."},
    {"14", R"({"$device":{"worker_ip":"a:1","gpu_idx":[-1]}})",
     "replica_config[0].devices[0].gpu_idx must be non-negative integers."},
    {"15", R"({"$":{"replica_uid":"  ","role":"prefill","devices":[{"worker_ip":"a:1"}]}})",
     "replica_config[0].replica_uid must not be empty or whitespace-only."},
    {"16", R"({"$":{"replica_uid":"a-rep3","role":"prefill","devices":[{"worker_ip":"a:1"}]}})",
     "replica_uid 'a-rep3' collides with a reserved internal replica/rank identifier; please choose another name."},
    {"16", R"({"$":{"replica_uid":"x-rank0","role":"prefill","devices":[{"worker_ip":"a:1"}]}})",
     "replica_uid 'x-rank0' collides with a reserved internal replica/rank identifier; please choose another name."},
    {"17", R"({"$":{"replica_uid":" D0 ","role":"prefill","devices":[{"worker_ip":"a:1"}]}})",
     "Duplicate replica_uid 'D0' in replica_config."},
    {"23", R"({"model_uid":" "})", kUid},
    {"23", R"({"model_uid":"x-rep0"})", kUid},
    {"limits", R"({"request_limits":-1})", "The `request_limits` parameter must be greater or equal than 0."},
    {"3.3", R"({"tensor_parallel_size":2})", "Xavier V1 currently requires TP=1 and PP=1; tensor_parallel_size is 2"},
    {"3.3", R"({"pipeline_parallel_size":4})", "Xavier V1 currently requires TP=1 and PP=1; pipeline_parallel_size is 4"},
    {"3.3", R"({"$device":{"worker_ip":"a:1","n_gpu":2}})",
     "Xavier V1 currently requires TP=1 and PP=1; a replica asks for 2 GPUs"},
    {"3.3", R"({"peft_model_config":{"lora_list":[{"lora_name":"a","local_path":"b"}]}})",
     "Xavier V1 currently supports text-only models without LoRA"},
};
INSTANTIATE_TEST_SUITE_P(Table, ReplicaConfigRules, ::testing::ValuesIn(kRows));

/// Several faults at once: the check that comes first in the table answers.
TEST(ParseLaunch, ChecksRunInTheOrderOfTheTable) {
    Json body = good_body();
    body["replica"] = 0;                       // 4
    body["worker_ip"] = "x";                   // 5
    body["replica_config"][0]["extra"] = 1;    // 6
    body["model_name"] = "";
    body["model_engine"] = nullptr;
    body["n_worker"] = 2;                      // 8
    body["replica_config"][1]["role"] = "prefill";  // 10
    body["replica_config"][0]["devices"].push_back({{"worker_ip", "b"}});  // 12
    body["model_uid"] = "";                    // 23
    body["request_limits"] = -4;
    const auto expect = [&](const char* part) { EXPECT_THAT(error_of(body), HasSubstr(part)); };
    expect("at least 1");
    body["replica"] = 3;  // 11
    expect("Cannot specify worker_ip");
    body["worker_ip"] = nullptr;
    expect("unknown key 'extra'");
    body["replica_config"][0].erase("extra");
    expect("`model_name`");
    body["model_name"] = "m";
    expect("`model_engine`");
    body["model_engine"] = "none-such";  // 9
    expect("n_worker>1");
    body["n_worker"] = 1;
    expect("model_type=LLM and model_engine=");
    body["model_engine"] = "baton";
    expect("both prefill and decode");
    body["replica_config"][1]["role"] = "decode";
    expect("length (2) must equal replica (3)");
    body["replica"] = 2;
    expect("exactly one device");
    body["replica_config"][0]["devices"].erase(1);
    expect("model UID is invalid");
    body["model_uid"] = "u";
    expect("request_limits");
    body["request_limits"] = 0;
    expect("accepted");
}

TEST(ParseLaunch, PdBodyGivesPlacements) {
    const auto r = parse_launch(good_body().dump());
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_TRUE(r->pd);
    EXPECT_TRUE(r->from_replica_config);
    ASSERT_EQ(r->placements.size(), 2u);
    EXPECT_EQ(r->placements[0].role, Role::kPrefill);
    EXPECT_EQ(r->placements[1].role, Role::kDecode);
    EXPECT_EQ(r->placements[0].replica_uid, "P0");
    EXPECT_EQ(r->placements[0].n_gpu, 0);
    EXPECT_EQ(r->raw_json, good_body().dump());
}

TEST(ParseLaunch, ReplicaConfigMayBeAString) {
    Json body = good_body();
    const std::string text = body["replica_config"].dump();
    body["replica_config"] = text;
    EXPECT_EQ(error_of(body), "accepted");
}

TEST(ParseLaunch, HyphenAliasIsTaken) {
    Json body = good_body();
    body["replica-config"] = body["replica_config"];
    body.erase("replica_config");
    const auto r = parse_launch(body.dump());
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_TRUE(r->pd);
}

TEST(ParseLaunch, ReplicaIsInferredOnlyWhereAbsent) {
    Json body = good_body();
    body.erase("replica");
    const auto r = parse_launch(body.dump());
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_EQ(r->replica, 2u);
    body["replica"] = "2";
    EXPECT_EQ(error_of(body), "accepted");
    body["replica"] = 1;
    EXPECT_THAT(error_of(body), HasSubstr("must equal replica (1)"));
}

TEST(ParseLaunch, AllHybridIsAnOrdinaryLaunch) {
    Json body = good_body();
    for (Json& e : body["replica_config"]) e.erase("role");
    const auto r = parse_launch(body.dump());
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_FALSE(r->pd);
}

TEST(ParseLaunch, LocalServeTakesNWorkerAsOne) {
    Json body = good_body();
    body["n_worker"] = 3;
    EXPECT_EQ(error_of(body, true), "accepted");
    EXPECT_THAT(error_of(body, false), HasSubstr("n_worker>1"));
}

TEST(ParseLaunch, TheClientsTwentyOneNullKeysChangeNothing) {
    const auto r = parse_launch(R"({"model_uid":null,"model_name":"m","model_engine":"vLLM","peft_model_config":null,
        "model_type":"LLM","model_size_in_billions":null,"model_format":null,"quantization":null,"replica":1,"n_worker":1,
        "n_gpu":"auto","request_limits":null,"worker_ip":null,"gpu_idx":null,"download_hub":null,"model_path":null,
        "replica_config":null,"enable_thinking":null,"enable_virtual_env":null,"virtual_env_packages":null,"envs":null})");
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_TRUE(r->ignored.empty());
    EXPECT_EQ(r->request_limits, -1);
    EXPECT_EQ(r->model_uid, "");
    ASSERT_EQ(r->placements.size(), 1u);
    EXPECT_FALSE(r->placements[0].n_gpu.has_value());
}

TEST(ParseLaunch, EngineNamesAreComparedWithoutCase) {
    for (const char* engine : {"baton", "BATON", "vllm", "VLLM", "sglang", "mlx", "transformers", "Llama.CPP"}) {
        Json body = ordinary_body();
        body["model_engine"] = engine;
        const auto r = parse_launch(body.dump());
        ASSERT_TRUE(r) << engine;
        EXPECT_EQ(r->model_engine, engine) << "kept as given";
    }
    Json body = ordinary_body();
    body["model_engine"] = "tgi";
    EXPECT_THAT(error_of(body), HasSubstr("baton, vLLM, SGLang, MLX, Transformers or llama.cpp"));
}

TEST(ParseLaunch, EngineKeywordsAreTaken) {
    Json body = ordinary_body();
    body.update(Json::parse(R"({"max_model_len":2048,"max-num-seqs":8,"max_num_batched_tokens":256,"block_size":32,"threads":1,
        "kv_cache_bytes":1048576,"enable_prefix_caching":false,"dtype":"bfloat16","kv_cache_dtype":"float32","kv_layout":"kv",
        "mover":"tcp","verify_handoff":true,"snapshots":false,"snapshot_read_always":true,"enable_xavier":true,
        "enable_thinking":false,"vllm_transfer_backend_type":"nixl","gpu_memory_utilization":0.7,"deterministic":true,"trust_remote_code":true})"));
    const auto r = parse_launch(body.dump());
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_EQ(r->max_model_len, 2048u);
    EXPECT_EQ(r->max_num_seqs, 8u);
    EXPECT_EQ(r->max_num_batched_tokens, 256u);
    EXPECT_EQ(r->block_size, 32u);
    EXPECT_EQ(r->threads, 1u);
    EXPECT_EQ(r->kv_cache_bytes, 1048576u);
    EXPECT_EQ(r->enable_prefix_caching, false);
    EXPECT_EQ(r->dtype, "bf16");
    EXPECT_EQ(r->kv_dtype, "f32");
    EXPECT_EQ(r->kv_layout, "kv");
    EXPECT_EQ(r->mover, "tcp");
    EXPECT_DOUBLE_EQ(r->gpu_memory_utilization, 0.7);
    EXPECT_TRUE(r->deterministic);
    EXPECT_TRUE(r->verify_handoff);
    EXPECT_EQ(r->snapshots, false);
    EXPECT_TRUE(r->snapshot_read_always);
    EXPECT_TRUE(r->enable_xavier);
    EXPECT_EQ(r->enable_thinking, false);
    EXPECT_TRUE(r->transfer_backend_normalised);
    EXPECT_EQ(r->ignored, (std::vector<std::string>{"trust_remote_code"}));
}

TEST(ParseLaunch, EngineKeywordErrorsNameTheField) {
    const std::pair<const char*, const char*> kCases[] = {
        {R"({"max_model_len":"2k"})", "max_model_len must be an integer, got a string"},
        {R"({"prefill":1,"decode":1})", "is an option of the command line; here roles stand in replica_config, one entry a replica: [{\"role\": \"prefill\""},
        {R"({"decode":1})", "`decode` is an option of the command line"},
        {R"({"max_model_len":0})", "max_model_len must be within 1..1048576, got 0"},
        {R"({"max_num_seqs":-1})", "max_num_seqs must be within 1..4096, got -1"},
        {R"({"threads":1.5})", "threads must be an integer, got a float"},
        {R"({"gpu_memory_utilization":0})", "gpu_memory_utilization must be above 0 and at most 1, got 0"},
        {R"({"gpu_memory_utilization":1.01})", "gpu_memory_utilization must be above 0 and at most 1, got 1.01"},
        {R"({"gpu_memory_utilization":"all"})", "gpu_memory_utilization must be a number, got a string"},
        {R"({"deterministic":1})", "deterministic must be a boolean, got an integer"},
        {R"({"block_size":true})", "block_size must be an integer, got a boolean"},
        {R"({"enable_xavier":1})", "enable_xavier must be a boolean, got an integer"},
        {R"({"kv_layout":"x"})", "kv_layout must be one of auto, block, kv, got 'x'"},
        {R"({"dtype":7})", "dtype must be one of"},
        {R"({"mover":"rdma"})", "mover must be one of auto, cuda_ipc, nccl, shm, tcp, got 'rdma'"},
        {R"({"request_limits":"5"})", "request_limits must be an integer, got a string"},
        {R"({"model_path":5})", "model_path must be a string, got an integer"},
    };
    for (const auto& [patch, message] : kCases) {
        Json body = ordinary_body();
        body.update(Json::parse(patch));
        EXPECT_THAT(error_of(body), HasSubstr(message)) << patch;
    }
}

TEST(ParseLaunch, NumbersOfFormsMayBeTexts) {
    Json body = ordinary_body();
    body.update(Json::parse(R"({"max_model_len":"2048","max_num_seqs":"8"})"));
    const auto r = parse_launch(body.dump());
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_EQ(r->max_model_len, 2048u);
    EXPECT_EQ(r->max_num_seqs, 8u);
    body.erase("max_model_len");
    body["context_length"] = 512;
    EXPECT_EQ(parse_launch(body.dump())->max_model_len, 512u) << "the newest command line's name for it";
    body["context_length"] = nullptr;
    EXPECT_EQ(parse_launch(body.dump())->max_model_len, 0u);
}

TEST(ParseLaunch, EnvsReachTheProcessesUnlessTheyChangeWhatRuns) {
    Json body = ordinary_body();
    body["envs"] = Json::parse(R"({"OMP_NUM_THREADS":4,"HF_TOKEN":"x y","EMPTY":""})");
    const auto r = parse_launch(body.dump());
    ASSERT_TRUE(r) << r.error().message;
    const std::vector<std::pair<std::string, std::string>> want{{"OMP_NUM_THREADS", "4"}, {"HF_TOKEN", "x y"}, {"EMPTY", ""}};
    EXPECT_EQ(r->envs, want);
    EXPECT_TRUE(r->ignored.empty());
    const std::pair<const char*, const char*> kCases[] = {
        {R"({"envs":["A"]})", "envs must be an object of strings, got a list"},
        {R"({"envs":{"LD_PRELOAD":"/x.so"}})", "envs must not set LD_PRELOAD"},
        {R"({"envs":{"BATON_LINK_SECRET":"x"}})", "envs must not set BATON_LINK_SECRET"},
        {R"({"envs":{"A=B":"x"}})", "is none of an environment variable"},
        {R"({"envs":{"":"x"}})", "is none of an environment variable"},
        {R"({"envs":{"A":{}}})", "envs.A must be a string, got an object"},
        {R"({"envs":{"A":"x\u0000y"}})", "envs.A must be a text of at most"},
    };
    for (const auto& [patch, message] : kCases) {
        Json bad = ordinary_body();
        bad.update(Json::parse(patch));
        EXPECT_THAT(error_of(bad), HasSubstr(message)) << patch;
    }
}

TEST(ParseLaunch, AnyTransferBackendMeansXavier) {
    for (const char* key : {"vllm_transfer_backend_type", "transfer_backend_type"}) {
        Json body = ordinary_body();
        body[key] = "nixl";
        const auto r = parse_launch(body.dump());
        ASSERT_TRUE(r) << r.error().message;
        EXPECT_TRUE(r->transfer_backend_normalised);
        EXPECT_EQ(r->transfer_backend, "'nixl'");
        body[key] = "xavier";
        EXPECT_FALSE(parse_launch(body.dump())->transfer_backend_normalised);
    }
}

TEST(ParseAddedReplica, IsOneHybridEntryOrNone) {
    for (const char* none : {"", "{}", R"({"replica_config":null})"}) {
        const auto r = parse_added_replica(none);
        ASSERT_TRUE(r) << none;
        EXPECT_FALSE(r->has_value()) << none;
    }
    for (const char* one : {R"({"replica_config":{"replica_uid":" x ","devices":[{"worker_ip":"a:1","n_gpu":0}]}})",
                            R"({"replica_config":[{"replica_uid":"x","role":"hybrid","devices":[{"worker_ip":"a:1","n_gpu":0}]}]})"}) {
        const auto r = parse_added_replica(one);
        ASSERT_TRUE(r) << r.error().message;
        EXPECT_EQ((*r)->replica_uid, "x");
        EXPECT_EQ((*r)->worker_ip, "a:1");
        EXPECT_EQ((*r)->n_gpu, 0);
    }
    EXPECT_EQ((*parse_added_replica(R"({"n_gpu":0,"model_engine":"vLLM","replica":1})"))->n_gpu, 0);
    const std::pair<const char*, const char*> kCases[] = {
        {"[]", "the body must be a JSON object"},
        {R"({"replica_config":[]})", "Invalid replica_config: it must be one object"},
        {R"({"replica_config":5})", "Invalid replica_config: replica_config[0] must be an object"},
        {R"({"replica_config":{"devices":[]}})", "must have exactly one device"},
        {R"({"replica":2})", "replicas are added one at a time"},
        {R"({"n_gpu":-1})", "n_gpu must be a non-negative integer or 'auto'"},
        {R"({"n_gpu":0,"replica_config":{"devices":[{"worker_ip":"a:1"}]}})", "Cannot specify n_gpu together with replica_config."},
        {R"({"replica_config":{"role":"prefill","devices":[{"worker_ip":"a:1"}]}})", "only hybrid replicas can be added"},
    };
    for (const auto& [body, message] : kCases) {
        const auto r = parse_added_replica(body);
        ASSERT_FALSE(r) << body;
        EXPECT_THAT(r.error().message, HasSubstr(message)) << body;
    }
}

/// What is kept and ignored at a launch, which has other engines' keywords, is a slip here.
TEST(ParseAddedReplica, RefusesKeysThatMeanNothing) {
    for (const char* key : {"n_gpus", "replicas", "replica_configs", "worker_ip", "gpu_idx", "role", "devices"}) {
        const auto r = parse_added_replica(std::string("{\"") + key + "\": 1}");
        ASSERT_FALSE(r) << key;
        EXPECT_EQ(r.error().message, std::string("a replica that is added takes replica_config or n_gpu, not '") + key + "'");
        EXPECT_EQ(r.error().param, key);
        EXPECT_TRUE(parse_added_replica(std::string("{\"") + key + "\": null}")) << key;
    }
}

TEST(ParseLaunch, OrdinaryPlacements) {
    Json body = ordinary_body();
    body.update(Json::parse(R"({"replica":2,"worker_ip":"a:1, b:2","gpu_idx":[3,4],"n_gpu":1})"));
    const auto r = parse_launch(body.dump());
    ASSERT_TRUE(r) << r.error().message;
    ASSERT_EQ(r->placements.size(), 2u);
    EXPECT_EQ(r->placements[1].worker_ip, "b:2");
    EXPECT_EQ(r->placements[1].gpu_idx, (std::vector<int64_t>{4}));
    body["gpu_idx"] = Json::array({1, 2, 3});
    EXPECT_EQ(error_of(body), "Invalid input. Allocated gpu must be a multiple of replica.");
    body["gpu_idx"] = 5;
    EXPECT_EQ(error_of(body), "Invalid input. Allocated gpu must be a multiple of replica.");
}

TEST(ParseLaunch, SizeKeepsItsSpelling) {
    for (const auto& [given, text] : std::vector<std::pair<Json, std::string>>{{7, "7"}, {0.5, "0.5"}, {"0_5", "0_5"}}) {
        Json body = ordinary_body();
        body["model_size_in_billions"] = given;
        const auto r = parse_launch(body.dump());
        ASSERT_TRUE(r);
        EXPECT_EQ(r->size_in_billions, text);
    }
}

TEST(ParseLaunch, HostileBodies) {
    EXPECT_FALSE(parse_launch(""));
    EXPECT_FALSE(parse_launch("[]"));
    EXPECT_FALSE(parse_launch("{\"a\":1"));
    EXPECT_FALSE(parse_launch(std::string(100'000, '[')));
    EXPECT_FALSE(parse_launch("{\"replica\":1e999}"));
    EXPECT_FALSE(parse_launch("{\"model_name\":\"\xff\"}"));
    // Cut a good body at every byte: never a crash, never accepted.
    const std::string good = good_body().dump();
    for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(parse_launch(good.substr(0, n))) << n;
    // Every value replaced by each kind of other value: an answer either way.
    const Json kinds = Json::parse(R"([null,true,0,-1,1.5,"","x",[],[1],{},{"a":1}])");
    const Json original = good_body();
    for (const auto& [key, value] : original.items())
        for (const Json& kind : kinds) {
            Json body = good_body();
            body[key] = kind;
            const auto r = parse_launch(body.dump());
            EXPECT_TRUE(r || !r.error().message.empty());
        }
}

TEST(EmptyReplicaConfig, IsNoLaunchOfNoReplica) {
    for (const char* list : {"[]", R"("[]")"}) {
        const auto r = parse_launch(std::string(R"({"model_name":"m","model_engine":"vLLM","replica_config":)") + list + "}", true);
        ASSERT_FALSE(r) << list;
        EXPECT_EQ(r.error().message, "replica_config length (0) must equal replica (1).");
    }
}

TEST(CheckModelUid, RefusesWhatCannotBeReached) {
    for (const char* uid : {"", "  ", "a-rep0", "a-rep17", "prompts", "families", "instances", "instance", "vllm-supported",
                            "update_type", "llm/auto-register", "a/replicas", "a/replicas/3", "a/progress", "a/cancel",
                            "a/events", "x/requests/y/abort", "a\nb", "/a", "a/", "a//b", "a/../b", "./a", "a?b", "a#b", "a/b?"})
        EXPECT_FALSE(check_model_uid(uid)) << uid;
    EXPECT_FALSE(check_model_uid(std::string(101, 'a')));
    for (const char* uid : {"m", "Qwen/Qwen2.5-0.5B-Instruct", "-rep3", "a-rep", "a-rep3b", "a b", "a-replicas", "日本"})
        EXPECT_TRUE(check_model_uid(uid)) << uid;
    EXPECT_TRUE(check_model_uid(std::string(100, 'a')));
    std::string hundred;
    for (int i = 0; i < 100; ++i) hundred += "é";
    EXPECT_TRUE(check_model_uid(hundred)) << "counted in characters";
}

}  // namespace
}  // namespace baton::config
