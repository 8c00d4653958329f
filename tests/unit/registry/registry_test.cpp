#include "baton/registry/registry.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace baton::registry {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const char* const kMine = R"({"version":1,"model_name":"my-llm","model_lang":["en","zh"],"model_ability":["chat"],"context_length":4096,"model_family":"other",
  "model_specs":[{"model_format":"pytorch","model_size_in_billions":7,"quantizations":["none"],"model_uri":"file:///models/mine"},
                 {"model_format":"ggufv2","model_size_in_billions":"0.5","quantization":"q4_0","model_id":"me/mine-gguf","model_file_name_template":"mine-{quantization}.gguf"}]})";

TEST(Registry, SizesAreSpelledManyWays) {
    for (const char* size : {"0.5", "0_5", "0.50", "0.5B", "0_5b"}) EXPECT_EQ(normalised_size(size), "0_5") << size;
    for (const char* size : {"7", "7.0", "7B", "7_0"}) EXPECT_EQ(normalised_size(size), "7") << size;
    EXPECT_EQ(normalised_size("70"), "70");
    EXPECT_EQ(normalised_size("0.135"), "0_135");
}

TEST(Registry, BuiltInFamiliesResolveBySize) {
    const Registry registry;
    for (const char* size : {"0.5", "0_5"}) {
        const auto r = registry.resolve({"qwen2.5-instruct", size, "", "", ""});
        ASSERT_TRUE(r) << r.error().message;
        EXPECT_EQ(r->repo, "Qwen/Qwen2.5-0.5B-Instruct");
        EXPECT_EQ(r->hub, "huggingface");
        EXPECT_EQ(r->format, "pytorch");
        EXPECT_EQ(r->quantization, "none");
        EXPECT_EQ(r->size, "0_5");
        EXPECT_EQ(r->abilities, (std::vector<std::string>{"chat", "tools"}));
    }
    EXPECT_EQ(registry.resolve({"qwen3", "8", "pytorch", "none", ""})->repo, "Qwen/Qwen3-8B");
    EXPECT_EQ(registry.resolve({"llama-3.1-instruct", "8", "", "", "modelscope"})->repo, "LLM-Research/Meta-Llama-3.1-8B-Instruct");
    EXPECT_EQ(registry.resolve({"llama-3.1-instruct", "8", "", "", ""}, "modelscope")->hub, "modelscope");
    EXPECT_EQ(registry.resolve({"smollm2-instruct", "1_7", "", "", ""}, "modelscope")->hub, "huggingface");  // not there: where it is
    EXPECT_EQ(registry.resolve({"mistral-instruct", "", "", "", ""})->repo, "mistralai/Mistral-7B-Instruct-v0.3");  // one size only
    EXPECT_EQ(registry.resolve({"llama-3.2-instruct", "3", "", "", ""})->repo, "meta-llama/Llama-3.2-3B-Instruct");
}

TEST(Registry, GgufFilesHaveNames) {
    const Registry registry;
    const auto r = registry.resolve({"smollm2-instruct", "0_135", "", "q4_k_m", ""});
    ASSERT_TRUE(r) << r.error().message;
    EXPECT_EQ(r->format, "ggufv2");
    EXPECT_EQ(r->quantization, "Q4_K_M");
    EXPECT_EQ(r->gguf_file, "SmolLM2-135M-Instruct-Q4_K_M.gguf");
    EXPECT_EQ(registry.resolve({"qwen2.5-instruct", "0.5", "ggufv2", "Q8_0", ""})->gguf_file, "qwen2.5-0.5b-instruct-q8_0.gguf");
}

Json with(const char* family, const Json& patch) {
    Json out = Json::parse(family);
    out.merge_patch(patch);
    return out;
}

TEST(Registry, HowAFamilyIsTalkedToComesWithTheChoice) {
    Registry registry;
    const Json style = {{"chat_template", "{% for m in messages %}[{{ m.content }}]{% endfor %}"}, {"stop", {"</s>", "###"}}, {"stop_token_ids", {2, 7}},
                        {"reasoning_start_tag", "<r>"}, {"reasoning_end_tag", "</r>"}, {"tool_parser", "qwen"}};
    ASSERT_TRUE(registry.add(with(kMine, style).dump(), false));
    // Another one is talked to as that one, by its name; its own stop texts do not count then, as with Xinference.
    ASSERT_TRUE(registry.add(with(kMine, {{"model_name", "cousin"}, {"chat_template", "my-llm"}, {"stop", {"x"}}}).dump(), false));
    ASSERT_TRUE(registry.add(with(kMine, {{"model_name", "like-built-in"}, {"chat_template", "qwen3"}}).dump(), false));
    for (const char* name : {"my-llm", "cousin"}) {
        for (const char* size : {"7", "0.5"}) {
            const auto r = registry.resolve({name, size, "", "", ""});
            ASSERT_TRUE(r) << r.error().message;
            EXPECT_EQ(r->style.chat_template, style["chat_template"].get<std::string>());
            EXPECT_EQ(r->style.stop, (std::vector<std::string>{"</s>", "###"}));
            EXPECT_EQ(r->style.stop_token_ids, (std::vector<int32_t>{2, 7}));
            EXPECT_EQ(r->style.reasoning_start + r->style.reasoning_end, "<r></r>");
            EXPECT_EQ(r->style.tool_parser, "qwen");
        }
    }
    EXPECT_EQ(registry.resolve({"like-built-in", "7", "", "", ""})->style.chat_template, "") << "the model's files say it";
    EXPECT_EQ(registry.resolve({"qwen3", "8", "", "", ""})->style.chat_template, "");
    EXPECT_EQ(registry.resolve({"org/name", "", "", "", ""})->style.stop.size(), 0u);
}

TEST(Registry, AWrongStyleIsRefusedByItsField) {
    Registry registry;
    const std::pair<Json, const char*> kCases[] = {
        {{{"chat_template", 7}}, "chat_template"},
        {{{"chat_template", "no-such-family"}}, "chat_template"},
        {{{"chat_template", "{% for m in messages %}"}}, "chat_template"},
        {{{"stop", "x"}}, "stop"},
        {{{"stop", {""}}}, "stop"},
        {{{"stop_token_ids", {"2"}}}, "stop_token_ids"},
        {{{"stop_token_ids", {-1}}}, "stop_token_ids"},
        {{{"stop_token_ids", {3000000000}}}, "stop_token_ids"},
        {{{"reasoning_start_tag", "<r>"}}, "reasoning_start_tag"},
        {{{"tool_parser", 1}}, "tool_parser"},
    };
    for (const auto& [patch, field] : kCases) {
        const auto added = registry.add(with(kMine, patch).dump(), false);
        ASSERT_FALSE(added) << patch;
        EXPECT_EQ(added.error().param, field) << patch;
    }
    EXPECT_TRUE(registry.add(with(kMine, {{"chat_template", nullptr}, {"stop", nullptr}, {"stop_token_ids", Json::array()}}).dump(), false));
}

TEST(Registry, WhatIsWrongIsToldWithWhatIsAllowed) {
    const Registry registry;
    const auto error = [&](const Wanted& w) { return registry.resolve(w).error(); };
    EXPECT_EQ(error({"qwen2.5-instruct", "", "", "", ""}).message, "model 'qwen2.5-instruct' has several sizes; choose model_size_in_billions 0_5, 1_5, 3, 7, 14, 32 or 72");
    EXPECT_EQ(error({"qwen2.5-instruct", "9", "", "", ""}).message, "model 'qwen2.5-instruct' has no size 9; it has 0_5, 1_5, 3, 7, 14, 32 or 72");
    EXPECT_EQ(error({"qwen2.5-instruct", "9", "", "", ""}).param, "model_size_in_billions");
    EXPECT_EQ(error({"qwen2.5-instruct", "7", "awq", "", ""}).message, "model 'qwen2.5-instruct' in that size has no format awq; it has pytorch");
    EXPECT_EQ(error({"qwen3", "4", "ggufv2", "", ""}).message, "model 'qwen3' has several quantizations in that size; choose quantization Q4_K_M, Q5_0, Q5_K_M, Q6_K or Q8_0");
    EXPECT_EQ(error({"qwen3", "4", "pytorch", "8-bit", ""}).param, "quantization");
    EXPECT_EQ(error({"smollm2-instruct", "0_135", "", "", "modelscope"}).message, "model 'smollm2-instruct' is not on the hub modelscope; it is on huggingface");
    const auto unknown = error({"gpt-5", "", "", "", ""});
    EXPECT_EQ(unknown.param, "model_name");
    for (const char* name : {"qwen2.5-instruct", "qwen3", "llama-3.1-instruct", "llama-3.2-instruct", "mistral-instruct", "smollm2-instruct"})
        EXPECT_NE(unknown.message.find(name), std::string::npos) << name;
}

TEST(Registry, ARepositorysIdNeedsNoFamily) {
    const Registry registry;
    const auto r = registry.resolve({"Qwen/Qwen3-0.6B", "", "", "", ""});
    ASSERT_TRUE(r);
    EXPECT_TRUE(r->direct);
    EXPECT_EQ(r->repo, "Qwen/Qwen3-0.6B");
    EXPECT_EQ(registry.resolve({"a/b", "", "", "", ""}, "modelscope")->hub, "modelscope");
}

class RegistryFile : public testing::Test {
  protected:
    RegistryFile() {
        std::string pattern = fs::temp_directory_path() / "baton-registry-XXXXXX";
        dir_ = ::mkdtemp(pattern.data());
        path_ = dir_ + "/registrations.json";
    }
    ~RegistryFile() override { fs::remove_all(dir_); }
    std::string dir_, path_;
};

TEST_F(RegistryFile, RegistrationsAreResolvedAndKept) {
    {
        Registry registry(path_);
        ASSERT_TRUE(registry.add(kMine, true));
        EXPECT_EQ(registry.add(kMine, true).error().message, "Model my-llm already registered");
        EXPECT_EQ(registry.resolve({"my-llm", "7", "", "", ""})->path, "/models/mine");
        const auto gguf = registry.resolve({"my-llm", "0.5", "", "", ""});
        EXPECT_EQ(gguf->repo, "me/mine-gguf");
        EXPECT_EQ(gguf->gguf_file, "mine-q4_0.gguf");
        std::string passing(kMine);
        passing.replace(passing.find("my-llm"), 6, "passes");
        ASSERT_TRUE(registry.add(passing, false));
    }
    Registry again(path_);
    EXPECT_TRUE(again.knows("my-llm"));
    EXPECT_FALSE(again.knows("passes"));
    EXPECT_EQ(again.remove("nope").error().message, "Model nope not found");
    EXPECT_FALSE(again.remove("qwen3"));
    ASSERT_TRUE(again.remove("my-llm"));
    EXPECT_FALSE(Registry(path_).knows("my-llm"));
    EXPECT_TRUE(Registry(path_).knows("qwen3"));
}

TEST_F(RegistryFile, AnUnreadableFileIsKeptAside) {
    std::ofstream(path_) << "{not json";
    Registry registry(path_);
    EXPECT_TRUE(fs::exists(path_ + ".unreadable"));
    EXPECT_TRUE(registry.add(kMine, true));
    EXPECT_TRUE(Registry(path_).knows("my-llm"));
    // One bad model does not take the others along.
    std::ofstream(path_) << R"({"version":1,"models":[{"model_name":"../x"},)" << kMine << "]}";
    EXPECT_TRUE(Registry(path_).knows("my-llm"));
}

TEST_F(RegistryFile, AStateThatCannotBeWrittenIsNoRegistration) {
    Registry registry(dir_ + "/no/such/folder/x.json");
    EXPECT_EQ(registry.add(kMine, true).error().code, ErrorCode::kIo);
    EXPECT_FALSE(registry.knows("my-llm"));
    EXPECT_TRUE(registry.add(kMine, false));
}

TEST(Registry, HostileRegistrationsAreRefused) {
    Registry registry;
    const Json good = Json::parse(kMine);
    const auto with = [&](const char* key, const Json& value) {
        Json j = good;
        j[key] = value;
        return j.dump();
    };
    const auto with_spec = [&](const char* key, const Json& value) {
        Json j = good;
        if (value.is_null()) j["model_specs"][0].erase(key);
        else j["model_specs"][0][key] = value;
        return j.dump();
    };
    for (const std::string& bad : {
             std::string(), std::string("[]"), std::string("\"x\""), std::string("{}"), std::string(100'000, '['), with("model_name", ""), with("model_name", "../x"), with("model_name", "a b"),
             with("model_name", std::string(200, 'a')), with("model_name", 7), with("model_specs", Json::array()), with("model_specs", 3), with("model_specs", Json::array({1})),
             with("model_ability", Json::array({"fly"})), with("model_ability", "chat"), with("model_lang", Json::array({1})), with("context_length", -1), with("context_length", "x"),
             with_spec("model_format", "exe"), with_spec("model_format", nullptr), with_spec("model_size_in_billions", Json::array()), with_spec("model_size_in_billions", "big"),
             with_spec("model_uri", "relative/path"), with_spec("model_uri", "http://x/y"), with_spec("model_uri", nullptr), with_spec("quantizations", 5), with_spec("model_src", 5),
         }) {
        const auto added = registry.add(bad, false);
        ASSERT_FALSE(added) << bad;
        EXPECT_EQ(added.error().code, ErrorCode::kInvalidArgument) << bad;
    }
    EXPECT_EQ(registry.add(with("model_specs", Json::array()), false).error().message, "Invalid model: model_specs must be a list of at least one");
    EXPECT_TRUE(registry.add(kMine, false));
}

TEST(Registry, TheApisAnswersHaveTheReferencesKeys) {
    Registry registry;
    ASSERT_TRUE(registry.add(kMine, false));
    const Json brief = Json::parse(registry.list_json(false));
    ASSERT_EQ(brief.size(), 7u);
    EXPECT_EQ(brief[0], (Json{{"model_name", "llama-3.1-instruct"}, {"is_builtin", true}}));
    EXPECT_EQ(brief[3], (Json{{"model_name", "my-llm"}, {"is_builtin", false}}));
    const Json detailed = Json::parse(registry.list_json(true, [](const std::string&, const std::string& repo, const std::string&, const std::string& q) {
        return repo == "me/mine-gguf" && q == "q4_0";
    }));
    for (const Json& f : detailed)
        for (const char* key : {"model_name", "is_builtin", "version", "context_length", "model_lang", "model_ability", "model_description", "model_family", "model_specs", "download_hubs"})
            EXPECT_TRUE(f.contains(key)) << f["model_name"] << key;
    EXPECT_EQ(detailed[3]["model_specs"][1]["cache_status"], Json::array({true}));
    EXPECT_EQ(detailed[3]["model_specs"][1]["model_size_in_billions"], "0_5");
    EXPECT_EQ(detailed[0]["model_specs"][0]["cache_status"], false);
    EXPECT_EQ(Json::parse(*registry.family_json("qwen3"))["model_ability"], (Json{"chat", "reasoning", "hybrid", "tools"}));
    EXPECT_EQ(registry.family_json("x").error().message, "Model x not found");
    const Json engines = Json::parse(*registry.engines_json("qwen2.5-instruct"));
    for (const auto& [name, rows] : engines.items()) {
        ASSERT_TRUE(rows.is_array() && !rows.empty()) << name;
        for (const char* key : {"model_name", "model_format", "model_size_in_billions", "quantizations"}) EXPECT_TRUE(rows[0].contains(key)) << name;
    }
    EXPECT_TRUE(engines.contains("vLLM") && engines.contains("baton"));
    EXPECT_FALSE(registry.engines_json("x"));
    const Json families = Json::parse(registry.families_json());
    for (const char* key : {"chat", "generate", "tools", "vision", "reasoning", "audio", "omni", "hybrid"}) EXPECT_TRUE(families[key].is_array()) << key;
    EXPECT_EQ(families["reasoning"], Json{"qwen3"});
    EXPECT_EQ(Json::parse(registry.cached_row_json("huggingface", "Qwen/Qwen3-8B", "config.json"))["model_name"], "qwen3");
    EXPECT_EQ(Json::parse(registry.cached_row_json("huggingface", "bartowski/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct-Q8_0.gguf"))["quantization"], "Q8_0");
    EXPECT_EQ(Json::parse(registry.cached_row_json("huggingface", "a/b", "x.gguf"))["model_name"], "a/b");
}

}  // namespace
}  // namespace baton::registry
