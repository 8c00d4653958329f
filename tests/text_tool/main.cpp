/// Templates and tokenizers from a command line, for tests/integration/test_templates.py and test_tokenizers.py: one JSON request
/// a line on stdin, one JSON answer a line on stdout. What a request names (a template, a tokenizer) stays for the next ones.

#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "baton/model/gguf_file.hpp"
#include "baton/text/chat_template.hpp"
#include "baton/text/tokenizer.hpp"
#include "model/gguf_vocabulary.hpp"
#include "text/unicode.hpp"

namespace {

using Json = nlohmann::json;
namespace text = baton::text;
using baton::Expected;
using baton::TokenId;

Json failure(const baton::Error& error) { return {{"error", error.message}, {"code", std::string(baton::to_string(error.code))}}; }

int64_t cpu_ms() { return static_cast<int64_t>(std::clock()) * 1000 / CLOCKS_PER_SEC; }

Json segments_json(const std::vector<text::Segment>& segments) {
    Json out = Json::array();
    for (const text::Segment& s : segments) out.push_back({s.text, s.from_user});
    return out;
}

std::vector<text::Segment> segments_from(const Json& list) {
    std::vector<text::Segment> out;
    for (const Json& s : list) out.push_back({s.at(0).get<std::string>(), s.at(1).get<bool>()});
    return out;
}

Expected<std::shared_ptr<const text::Tokenizer>> load_gguf(const std::string& path) {
    BATON_TRY_ASSIGN(const baton::model::GgufFile file, baton::model::GgufFile::open(path));
    BATON_TRY_ASSIGN(text::GgufTokenizer fields, baton::model::gguf_tokenizer(file));
    return text::Tokenizer::from_gguf(std::move(fields));
}

Expected<std::shared_ptr<const text::Tokenizer>> load_json(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream content;
    content << file.rdbuf();
    return text::Tokenizer::from_json(content.str());
}

/// What a stream makes of `ids`, one token at a time.
std::string streamed(const text::Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip_special) {
    text::StreamDecoder stream(tokenizer, true);
    std::string out;
    for (const TokenId id : ids) {
        if (!skip_special || !tokenizer.is_special(id)) out += stream.push(id);
    }
    return out + stream.finish();
}

class Tool {
  public:
    Json answer(const Json& request) {
        const std::string op = request.at("op");
        if (op == "template") return compile(request);
        if (op == "render") return render(request);
        if (op == "tokenizer") return load(request);
        if (op == "classes") return classes(request);
        if (op == "normalize") return normalize(request);
        if (tokenizer_ == nullptr) return {{"error", "no tokenizer"}};
        if (op == "encode") return encode(request);
        if (op == "segments") {
            const std::vector<text::Segment> segments = segments_from(request.at("segments"));
            return {{"ids", tokenizer_->encode_segments(segments)}};
        }
        if (op == "decode") return decode(request);
        return {{"error", "unknown op " + op}};
    }

  private:
    Json compile(const Json& request) {
        template_ = nullptr;
        auto made = text::ChatTemplate::compile(request.at("source").get<std::string>());
        if (!made) return failure(made.error());
        template_ = std::move(*made);
        return {{"ok", true}};
    }

    Json render(const Json& request) const {
        if (template_ == nullptr) return {{"error", "no template"}};
        const auto rendered = template_->render(request.at("context").get<std::string>());
        if (!rendered) return failure(rendered.error());
        return {{"segments", segments_json(*rendered)}};
    }

    /// The class bits of each code point in [begin, end), and 128 for \w.
    static Json classes(const Json& request) {
        Json out = Json::array();
        for (uint32_t code = request.at("begin"); code < request.at("end").get<uint32_t>(); ++code)
            out.push_back(text::char_class(code) | (text::is_regex_word(code) ? 128 : 0));
        return {{"classes", std::move(out)}};
    }

    static Json normalize(const Json& request) {
        const std::string form = request.at("form");
        const text::NormalForm wanted = form == "NFC"    ? text::NormalForm::kNfc
                                        : form == "NFD"  ? text::NormalForm::kNfd
                                        : form == "NFKC" ? text::NormalForm::kNfkc
                                                         : text::NormalForm::kNfkd;
        Json out = Json::array();
        for (const Json& t : request.at("texts")) out.push_back(text::normalize(t.get_ref<const std::string&>(), wanted));
        return {{"texts", std::move(out)}};
    }

    Json load(const Json& request) {
        tokenizer_ = nullptr;
        const std::string path = request.at("path");
        auto made = path.ends_with(".gguf") ? load_gguf(path) : load_json(path);
        if (!made) return failure(made.error());
        tokenizer_ = std::move(*made);
        return {{"vocab_size", tokenizer_->vocab_size()}};
    }

    Json encode(const Json& request) const {
        const bool parse_special = request.value("parse_special", true);
        const bool add_special = request.value("add_special", false);
        Json all = Json::array();
        const int64_t begin_ms = cpu_ms();
        for (const Json& t : request.at("texts")) all.push_back(tokenizer_->encode(t.get_ref<const std::string&>(), parse_special, add_special));
        return {{"ids", std::move(all)}, {"cpu_ms", cpu_ms() - begin_ms}};
    }

    Json decode(const Json& request) const {
        const bool skip_special = request.value("skip_special", false);
        Json texts = Json::array();
        Json streams = Json::array();
        for (const Json& list : request.at("ids")) {
            const auto ids = list.get<std::vector<TokenId>>();
            texts.push_back(tokenizer_->decode(ids, skip_special));
            streams.push_back(streamed(*tokenizer_, ids, skip_special));
        }
        return {{"texts", std::move(texts)}, {"streams", std::move(streams)}};
    }

    std::shared_ptr<const text::ChatTemplate> template_;
    std::shared_ptr<const text::Tokenizer> tokenizer_;
};

}  // namespace

int main() {
    Tool tool;
    for (std::string line; std::getline(std::cin, line);) {
        Json answer;
        try {
            answer = tool.answer(Json::parse(line));
        } catch (const std::exception& e) {
            answer = {{"error", std::string("request: ") + e.what()}};
        }
        std::cout << answer.dump() << std::endl;
    }
    return 0;
}
