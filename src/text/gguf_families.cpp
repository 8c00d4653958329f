#include "text/gguf_families.hpp"

#include <array>

namespace baton::text {
namespace {

using Patterns = std::span<const std::string_view>;

// Split patterns as the models' own tokenizer.json files have them.
constexpr std::string_view kGpt2 =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kModern1 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kModern3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kModernMarks =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kTekken =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kNumber1 = R"(\p{N})";
constexpr std::string_view kNumber3 = R"(\p{N}{1,3})";
constexpr std::string_view kNewline = R"([\r\n])";
constexpr std::string_view kNewlineRuns = R"([^\n]+|[\n]+)";
constexpr std::string_view kCjkAndKana =
    R"([\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+)";
constexpr std::string_view kEastAsian = R"([\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+)";
constexpr std::string_view kDeepSeek3 =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
    R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kBloom =
    R"( ?[^(\s|.,!?\x{2026}\x{3002}\x{FF0C}\x{3001}\x{964}\x{6D4}\x{60C})]+)";
constexpr std::string_view kBailing =
    R"('(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
constexpr std::string_view kSeedCoder =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kMiniCpm5 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kSpaceLetters = R"(\s?\p{L}+)";
constexpr std::string_view kSpacePunctuation = R"(\s?\p{P}+)";
/// Letters that have a case, as DeepSeek LLM lists them.
constexpr std::string_view kSpaceCased =
    R"(\s?[)"
    R"(A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293})"
    R"(\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-)"
    R"(\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-)"
    R"(\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-)"
    R"(\x{1CBF}\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18})"
    R"(-\x{1F1D}\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D})"
    R"(\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}\x{1FC6})"
    R"(-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4})"
    R"(\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124})"
    R"(\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}\x{2145}-)"
    R"(\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE})"
    R"(\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787})"
    R"(\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}\x{FF21}-)"
    R"(\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB})"
    R"(\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943})"
    R"(]+)";
constexpr std::string_view kSpaceSymbols =
    R"(\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+)";
constexpr std::string_view kTrailingSpace = R"(\s+$)";

constexpr std::array kGpt2Steps{kGpt2};
constexpr std::array kDigitsGpt2Steps{kNumber1, kGpt2};
constexpr std::array kModern1Steps{kModern1};
constexpr std::array kModern3Steps{kModern3};
constexpr std::array kModernMarksSteps{kModernMarks};
constexpr std::array kO200kSteps{kO200k};
constexpr std::array kTekkenSteps{kTekken};
constexpr std::array kDeepSeekLlmSteps{kNewline,       kSpaceCased, kSpaceSymbols,
                                       kTrailingSpace, kEastAsian,  kNumber1};
constexpr std::array kDeepSeekCoderSteps{kNewline, kSpaceLetters, kSpacePunctuation, kEastAsian,
                                         kNumber1};
constexpr std::array kDeepSeek3Steps{kNumber3, kCjkAndKana, kDeepSeek3};
constexpr std::array kBloomSteps{kBloom};
constexpr std::array kVikingSteps{kBloom, kNumber1};
constexpr std::array kBailingSteps{kBailing};
constexpr std::array kSeedCoderSteps{kSeedCoder};
constexpr std::array kMiniCpm5Steps{kNumber3, kMiniCpm5};
constexpr std::array kLagunaSteps{kNewlineRuns, kModern1};

constexpr std::array<GgufFamily, 20> kFamilies{{
    {" gpt-2 gpt2 phi-2 mpt olmo jais gigachat jina-es jina-de jina-v1-en jina-v2-es jina-v2-de "
     "jina-v2-code roberta-bpe a.x-4.0 mellum modern-bert exaone4 trillion granite-docling ",
     kGpt2Steps, false, false, false},
    {" smollm starcoder refact codeshell exaone minerva-7b mellum2 ", kDigitsGpt2Steps, false,
     false, false},
    {" command-r ", kDigitsGpt2Steps, true, false, false},
    {" qwen2 deepseek-r1-qwen kormo f2llmv2 megrez stablelm2 ", kModern1Steps, true, false, false},
    {" hunyuan solar-open grok-2 ", kModern1Steps, false, false, false},
    {" qwen35 ", kModernMarksSteps, true, false, false},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano glm4 glm5 ",
     kModern3Steps, false, true, false},
    {" dbrx smaug-bpe chatglm-bpe ", kModern3Steps, false, false, false},
    {" gpt-4o llama4 kanana2 talkie minimax-m2 ", kO200kSteps, false, false, false},
    {" tekken ", kTekkenSteps, false, true, false},
    {" deepseek-llm ", kDeepSeekLlmSteps, false, false, false},
    {" deepseek-coder ", kDeepSeekCoderSteps, false, false, false},
    {" deepseek-v3 hunyuan-dense joyai-llm hy_v4 ", kDeepSeek3Steps, false, false, false},
    {" bloom poro-chat gpt3-finnish ", kBloomSteps, false, false, false},
    {" viking ", kVikingSteps, false, false, false},
    {" bailingmoe bailingmoe2 llada-moe ", kBailingSteps, false, false, false},
    {" seed-coder ", kSeedCoderSteps, false, false, false},
    {" minicpm5 ", kMiniCpm5Steps, false, true, false},
    {" laguna ", kLagunaSteps, false, false, false},
    {" falcon ", Patterns(), false, false, true},
}};

}  // namespace

const GgufFamily* find_gguf_family(std::string_view name) {
    if (name.empty() || name.find(' ') != std::string_view::npos) return nullptr;
    const std::string word = ' ' + std::string(name) + ' ';
    for (const GgufFamily& family : kFamilies) {
        if (family.names.find(word) != std::string_view::npos) return &family;
    }
    return nullptr;
}

}  // namespace baton::text
