#include "launch_warnings.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string_view>

namespace baton::supervisor {
namespace {

/// Without case and without the signs that spellings differ by: "Q4_K_M", "q4-k-m" → "q4km".
std::string plain(const std::string& text) {
    std::string out;
    for (const char c : text)
        if (std::isalnum(static_cast<unsigned char>(c)) != 0) out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
}

/// Whether the client's word for a quantization can mean what the files hold: Q4_K_M is a mixture of which most is Q4_K.
bool can_mean(const std::string& label, const std::string& held) {
    const std::string a = plain(label), b = plain(held);
    if (a.empty() || b.empty() || a == "none" || a == "auto" || a.starts_with(b) || b.starts_with(a)) return true;
    const auto is_plain_type = [](const std::string& t) { return t == "f16" || t == "bf16" || t == "f32" || t == "fp16" || t == "fp32" || t == "float16" || t == "bfloat16"; };
    if (is_plain_type(a)) return is_plain_type(b) && a.back() == b.back() && a.starts_with("b") == b.starts_with("b");
    // Mixtures (IQ…, Q…_K_…) hold several types: only the bits tell.
    const auto bits = [](const std::string& t) { return t.find_first_of("0123456789") == std::string::npos ? ' ' : t[t.find_first_of("0123456789")]; };
    return a.find('k') != std::string::npos && !is_plain_type(b) && bits(a) == bits(b);
}

/// Billions of parameters that a label says: "0.6", "0_6", "7", "7B". Nothing where it is no number.
std::optional<double> billions(std::string label) {
    std::ranges::replace(label, '_', '.');
    double value = 0;
    const auto [end, error] = std::from_chars(label.data(), label.data() + label.size(), value);
    const std::string_view rest(end, static_cast<size_t>(label.data() + label.size() - end));
    if (error != std::errc{} || !(value > 0) || !(rest.empty() || rest == "b" || rest == "B")) return std::nullopt;
    return value;
}

bool is_gguf(const std::string& format) { return plain(format).starts_with("gguf"); }

}  // namespace

std::vector<std::string> launch_warnings(const config::LaunchRequest& request, const model::ModelInfo& model, bool labelled) {
    std::vector<std::string> out;
    if (request.max_model_len > model.context_length)
        out.push_back("max_model_len " + std::to_string(request.max_model_len) + " is beyond the model's context: " + std::to_string(model.context_length) + " is used");
    if (request.request_limits == 0) out.push_back("request_limits 0 refuses every request");
    if (labelled && !request.model_format.empty() && is_gguf(request.model_format) != is_gguf(model.format))
        out.push_back("model_format is " + request.model_format + ", but the files are " + model.format);
    if (labelled && !can_mean(request.quantization, model.quantization))
        out.push_back("quantization is " + request.quantization + ", but most of the weights are " + model.quantization);
    // Labels are rounded, and embeddings count or not.
    if (const auto said = billions(request.size_in_billions); labelled && said && model.parameters > 0)
        if (const double held = static_cast<double>(model.parameters) * 1e-9; *said > 2 * held || 2 * *said < held) {
            char text[32];
            if (held >= 0.1) std::snprintf(text, sizeof text, "%.2g billion", held);
            else std::snprintf(text, sizeof text, "%.3g million", held * 1000);
            out.push_back("model_size_in_billions is " + request.size_in_billions + ", but the files hold " + text + " parameters");
        }
    return out;
}

}  // namespace baton::supervisor
