#pragma once

#include <boost/asio/thread_pool.hpp>
#include <string>

#include "baton/config/settings.hpp"
#include "baton/http/router.hpp"
#include "model_directory.hpp"

namespace baton::supervisor {

/// What a model makes of a text, without running it: /tokenize, /detokenize, /v1/chat/completions/render and
/// /apply-template. A request that names no model means the only one there is. All on the text pool.
class TextApi {
  public:
    TextApi(boost::asio::thread_pool& text, const config::SupervisorSettings& settings, ModelDirectory& models) : text_(text), settings_(settings), models_(models) {}
    void add_routes(http::Router& router);

  private:
    using Handler = void (TextApi::*)(http::Exchange&, const std::string& body);
    void tokenize(http::Exchange& exchange, const std::string& body);
    void detokenize(http::Exchange& exchange, const std::string& body);
    void render(http::Exchange& exchange, const std::string& body);
    [[nodiscard]] openai::ParseOptions parse_options() const;

    boost::asio::thread_pool& text_;
    const config::SupervisorSettings& settings_;
    ModelDirectory& models_;
};

}  // namespace baton::supervisor
