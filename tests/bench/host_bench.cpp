// What the host does for a prompt and for a token, part by part, in processor time of one thread.
//   host_bench TOKENIZER.json TEXT [prompt tokens]
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>

#include "baton/openai/json.hpp"
#include "baton/openai/request.hpp"
#include "baton/openai/response.hpp"
#include "baton/pd/replica_core.hpp"
#include "baton/pd/router.hpp"
#include "baton/text/tokenizer.hpp"
#include "baton/wire/messages.hpp"

namespace baton {
namespace {

constexpr uint32_t kStreams = 64;

/// Processor time of the calling thread: other programs on the machine do not count.
double thread_us() {
    timespec t{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

/// Microseconds that one call takes, the least of several rounds.
template <class Call>
double timed(int calls, Call call) {
    double best = 1e30;
    for (int round = 0; round < 7; ++round) {
        const double begin = thread_us();
        for (int i = 0; i < calls; ++i) call();
        best = std::min(best, (thread_us() - begin) / calls);
    }
    return best;
}

void show(const char* what, double us, double per, const char* unit) {
    std::printf("%-44s %9.1f us, %8.3f us a %s\n", what, us, us / per, unit);
}

std::string read_file(const char* path) {
    std::ifstream in(path, std::ios::binary);
    std::stringstream out;
    out << in.rdbuf();
    return out.str();
}

wire::Sequence sequence_of(uint64_t id, const std::vector<TokenId>& prompt, uint32_t answer) {
    wire::Sequence s;
    s.ref.id = SequenceId{id};
    s.ref.attempt = 1;
    s.request_id = "0123456789abcdef0123456789abcdef";
    s.prompt = prompt;
    s.sampling.max_tokens = answer;
    s.sampling.stop_ids = {151'643, 151'645};
    s.time_left_ms = 600'000;
    return s;
}

/// From the body to the ids, and both ways over a link.
void prompts(const text::Tokenizer& tokenizer, const std::string& text,
             const std::vector<TokenId>& ids) {
    const auto count = static_cast<double>(ids.size());
    std::string body = R"({"model":"m","stream":true,"max_tokens":128,"prompt":)";
    openai::append_json_string(body, text);
    body += '}';
    show("prompt: body parsed",
         timed(20, [&] { (void)openai::parse_completion_request(body, {}); }), count, "token");
    show("prompt: tokenized", timed(10, [&] { (void)tokenizer.encode(text, true, true); }), count,
         "token");
    const std::vector<text::Segment> segments{{"<|im_start|>user\n", false},
                                              {text, true},
                                              {"<|im_end|>\n<|im_start|>assistant\n", false}};
    show("prompt: tokenized, of a chat",
         timed(10, [&] { (void)tokenizer.encode_segments(segments); }), count, "token");
    const wire::Message run = wire::Run{sequence_of(1, ids, 128)};
    show("prompt: encoded for the link", timed(50, [&] { (void)wire::encode(run); }), count,
         "token");
    const auto frame = wire::encode(run);
    const auto bytes = std::span(frame).subspan(wire::kFrameHeaderBytes);
    show("prompt: decoded",
         timed(50, [&] { (void)wire::decode_body(static_cast<uint16_t>(run.index()), bytes); }),
         count, "token");
}

pd::CoreConfig core_config(uint32_t block_tokens) {
    pd::CoreConfig core;
    core.block_tokens = block_tokens;
    core.blocks = 1 << 16;
    core.max_model_len = 32'768;
    core.max_running = 256;
    core.step_tokens = 16'384;
    core.steps_ahead = 1;
    return core;
}

/// A prompt from its message to the end of its first step.
void admission(std::vector<TokenId> ids, uint32_t block_tokens) {
    pd::ReplicaCore core(core_config(block_tokens));
    uint64_t id = 0;
    std::vector<pd::Sampled> sampled(1);
    double taken = 0, planned = 0, done = 0;
    constexpr int kRounds = 50;
    for (int i = 0; i < kRounds; ++i) {
        ids.front() = static_cast<TokenId>(i);  // no prefix to be found
        const wire::Message run = wire::Run{sequence_of(++id, ids, 1)};
        const double begin = thread_us();
        core.on_supervisor(steady_now(), run);
        const double in = thread_us();
        pd::StepPlan plan = core.plan_step(steady_now());
        (void)core.take_actions();
        const double ready = thread_us();
        core.on_step_done(steady_now(), plan, sampled);
        (void)core.take_actions();
        taken += in - begin, planned += ready - in, done += thread_us() - ready;
    }
    const auto count = static_cast<double>(ids.size());
    std::printf("blocks of %u tokens\n", block_tokens);
    show("  core: sequence taken", taken / kRounds, count, "token");
    show("  core: admitted and planned", planned / kRounds, count, "token");
    show("  core: its step done", done / kRounds, count, "token");
}

wire::TokenBatch batch_of(uint32_t index) {
    wire::TokenBatch batch;
    for (uint32_t i = 0; i < kStreams; ++i) {
        wire::SeqTokens& item = batch.items.emplace_back();
        item.ref.id = SequenceId{i + 1};
        item.ref.attempt = 1;
        item.first_index = index;
        item.tokens.push_back({});
        item.tokens.back().id = static_cast<TokenId>(1'000 + (index * 64 + i) * 37 % 60'000);
    }
    return batch;
}

/// A step's tokens on their way to the frames of their streams.
void tokens(const std::shared_ptr<const text::Tokenizer>& tokenizer) {
    const wire::Message batch = batch_of(1);
    show("step of 64: encoded for the link", timed(500, [&] { (void)wire::encode(batch); }),
         kStreams, "token");
    const auto frame = wire::encode(batch);
    const auto bytes = std::span(frame).subspan(wire::kFrameHeaderBytes);
    show("step of 64: decoded",
         timed(500, [&] { (void)wire::decode_body(static_cast<uint16_t>(batch.index()), bytes); }),
         kStreams, "token");

    pd::Router router({});
    const wire::ReplicaTarget replica{ReplicaId{1}, Epoch{1}};
    router.add_replica(replica.replica, Role::kHybrid);
    router.replica_up(steady_now(), replica);
    for (uint32_t i = 0; i < kStreams; ++i)
        (void)router.submit(steady_now(),
                            sequence_of(i + 1, std::vector<TokenId>(512, 5), 1'000'000),
                            steady_now() + 600'000);
    (void)router.take_actions();
    uint32_t index = 0;
    std::vector<wire::Message> coming;
    for (uint32_t i = 0; i < 7 * 500; ++i) coming.emplace_back(batch_of(i));
    show("step of 64: routed",
         timed(500,
               [&] {
                   router.on_message(steady_now(), replica, coming[index++]);
                   (void)router.take_actions();
               }),
         kStreams, "token");

    for (const bool chat : {false, true}) {
        openai::ResponseOptions options;
        options.chat = chat;
        options.id = openai::response_id(chat, "");
        options.model = "m";
        options.system_fingerprint = "fp_0123456789abcdef";
        options.created_s = 1'700'000'000;
        options.generation.stream = true;
        options.prompts = {{512, ""}};
        openai::ResponseBuilder builder(options, tokenizer);
        TokenId id = 1'000;
        show(chat ? "token: frame of a chat" : "token: frame of a completion",
             timed(5'000,
                   [&] {
                       wire::Token token;
                       token.id = id = 1'000 + (id + 37) % 60'000;
                       (void)builder.push(0, {&token, 1}, wire::Finish::kNone);
                   }),
             1, "token");
    }
}

int run(int argc, char** argv) {
    if (argc < 3)
        return std::fprintf(stderr, "host_bench TOKENIZER.json TEXT [prompt tokens]\n"), 2;
    const auto tokenizer = text::Tokenizer::from_json(read_file(argv[1]));
    if (!tokenizer) return std::fprintf(stderr, "%s\n", tokenizer.error().message.c_str()), 1;
    std::string text = read_file(argv[2]);
    std::vector<TokenId> ids = (*tokenizer)->encode(text, true, true);
    const size_t wanted = argc > 3 ? static_cast<size_t>(std::atoi(argv[3])) : 8'000;
    if (ids.size() < wanted)
        return std::fprintf(stderr, "the text has %zu tokens only\n", ids.size()), 1;
    ids.resize(wanted);
    text = (*tokenizer)->decode(ids, false);
    std::printf("prompt of %zu tokens, %zu bytes\n", ids.size(), text.size());
    prompts(**tokenizer, text, ids);
    for (const uint32_t block_tokens : {16u, 64u}) admission(ids, block_tokens);
    tokens(*tokenizer);
    return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
    return baton::run(argc, argv);
}
