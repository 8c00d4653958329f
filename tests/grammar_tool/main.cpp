/// Constraints without a model (tests/integration/test_constrained_texts.py, scripts/bench_constraints.py). A request a line:
///   {"kind": 2, "text": "…", "samples": 5, "seed": 1, "tokens": 400, "text_only": …}
/// gives {"error": "…"} or {"compile_ms": …, "bytes": …, "texts": [[text, ended], …], "cold_us": […], "warm_us": […]}: texts of
/// random walks over the allowed tokens, which lean towards the end the longer they get.
/// usage: baton-grammar-tool [MODEL_PATH | tokenizer.json VOCAB]   (without: single bytes and some common tokens)
#include <chrono>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <string>

#include "baton/grammar/grammar.hpp"
#include "baton/grammar/matcher.hpp"
#include "baton/model/model.hpp"

namespace {

using namespace baton;
using nlohmann::json;
using Clock = std::chrono::steady_clock;

double us_since(Clock::time_point begin) { return std::chrono::duration<double, std::micro>(Clock::now() - begin).count(); }

std::shared_ptr<const grammar::Vocabulary> small_vocabulary() {
    std::vector<grammar::Vocabulary::Token> tokens;
    for (int b = 0; b < 256; ++b) tokens.push_back({std::string(1, static_cast<char>(b)), false});
    for (const char* t : {"{\"", "\": ", "\",", "\"}", ": ", ", ", "\": \"", "},", "}]", "true", "false", "null", "the", " a", "12", "00", "\n  ", "é", "日本", "\xF0\x9F\x98\x80"})
        tokens.push_back({t, false});
    return grammar::Vocabulary::make(tokens, static_cast<uint32_t>(tokens.size()));
}

[[noreturn]] void give_up(const Error& error) {
    std::cerr << error.message << "\n";
    std::exit(1);
}

std::shared_ptr<const grammar::Vocabulary> vocabulary_of(const text::Tokenizer& tokenizer, uint32_t size) {
    const auto begin = Clock::now();
    std::vector<grammar::Vocabulary::Token> tokens(tokenizer.vocab_size());
    for (size_t i = 0; i < tokens.size(); ++i) {
        const auto id = static_cast<TokenId>(i);
        tokens[i] = {tokenizer.token_bytes(id), tokenizer.is_special(id)};
    }
    auto made = grammar::Vocabulary::make(tokens, size);
    std::cerr << "vocabulary " << made->size() << ", " << us_since(begin) / 1e3 << " ms, " << made->memory() << " bytes\n";
    return made;
}

std::shared_ptr<const grammar::Vocabulary> load_vocabulary(const std::vector<std::string>& args) {
    if (args.empty()) return small_vocabulary();
    if (args.size() > 1) {
        std::ifstream in(args[0], std::ios::binary);
        const std::string text{std::istreambuf_iterator<char>(in), {}};
        const auto tokenizer = text::Tokenizer::from_json(text);
        if (!tokenizer) give_up(tokenizer.error());
        return vocabulary_of(**tokenizer, static_cast<uint32_t>(std::stoul(args[1])));
    }
    const auto info = model::inspect_model(args[0]);
    if (!info) give_up(info.error());
    return vocabulary_of(*info->tokenizer, info->shape.vocab);
}

/// One random text; what each mask took is added to `us`.
json walk(grammar::Runner& runner, const grammar::Vocabulary& vocabulary, std::mt19937_64& random, uint32_t tokens, json& us) {
    grammar::Matcher matcher(runner);
    std::string text;
    for (uint32_t n = 0; n < tokens && !matcher.must_end(); ++n) {
        if (matcher.may_end() && random() % 4 == 0) return {text, true};
        const auto begin = Clock::now();
        const auto mask = matcher.mask();
        us.push_back(us_since(begin));
        if (!mask) return {mask.error().message, false};
        std::vector<TokenId> can;
        std::vector<TokenId> closing;
        for (uint32_t id = 0; id < vocabulary.size(); ++id) {
            if (((*mask)[id / 32] >> (id % 32) & 1) == 0) continue;
            can.push_back(static_cast<TokenId>(id));
            const auto bytes = vocabulary.bytes_of(can.back());
            if (bytes.size() == 1 && (bytes[0] == '"' || bytes[0] == '}' || bytes[0] == ']')) closing.push_back(can.back());
        }
        if (can.empty()) return {text + " <nothing may follow>", false};
        const bool close = !closing.empty() && random() % 100 < 10 + n / 2;
        const auto& from = close ? closing : can;
        const TokenId id = from[random() % from.size()];
        for (const uint8_t b : vocabulary.bytes_of(id)) text += static_cast<char>(b);
        if (!matcher.accept(id)) return {"accept failed", false};
    }
    return {text, matcher.may_end()};
}

json answer(const json& request, const std::shared_ptr<const grammar::Vocabulary>& vocabulary) {
    wire::Constraint c;
    c.kind = static_cast<wire::ConstraintKind>(request.value("kind", 2));
    c.text = request.value("text", "");
    auto begin = Clock::now();
    auto program = grammar::compile(c);
    json out{{"compile_ms", us_since(begin) / 1e3}};
    if (!program) {
        out["error"] = program.error().message;
        return out;
    }
    out["bytes"] = program->bytes();
    grammar::Runner runner(std::move(*program), vocabulary);
    std::mt19937_64 random(request.value("seed", 1u));
    json cold = json::array(), texts = json::array();
    for (int i = 0; i < request.value("samples", 5); ++i) texts.push_back(walk(runner, *vocabulary, random, request.value("tokens", 400u), cold));
    out["texts"] = texts;
    out["masks_us"] = cold;
    out["runner_bytes"] = runner.bytes();
    // A text of one's own: what its masks take the first and the second time.
    if (request.contains("ids")) {
        grammar::Runner own(*grammar::compile(c), vocabulary);
        for (const char* round : {"cold_us", "warm_us"}) {
            grammar::Matcher matcher(own);
            json us = json::array();
            for (const TokenId id : request["ids"]) {
                begin = Clock::now();
                const auto mask = matcher.mask();
                if (mask && ((*mask)[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) == 0) out["rejected"] = id;
                (void)matcher.accept(id);
                us.push_back(us_since(begin));
            }
            out[round] = us;
            out["may_end"] = matcher.may_end();
        }
        out["own_bytes"] = own.bytes();
    }
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    const auto vocabulary = load_vocabulary({argv + 1, argv + argc});
    for (std::string line; std::getline(std::cin, line);)
        std::cout << answer(json::parse(line), vocabulary).dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
    return 0;
}
