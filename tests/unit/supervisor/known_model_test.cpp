#include "supervisor/known_model.hpp"

#include <gtest/gtest.h>

namespace baton::supervisor {
namespace {

model::ModelInfo small() {
    model::ModelInfo info;
    info.shape.vocab = 100;
    info.eos = {2};
    info.chat_template_source = "of the files";
    info.chat_template_error = "does not compile";
    return info;
}

TEST(KnownModel, ARegistrationsTemplateAndStopTokensWin) {
    model::ModelInfo info = small();
    registry::Style style;
    style.chat_template = "{{ messages[0].content }}!";
    style.stop_token_ids = {7, 2, 99};
    ASSERT_TRUE(apply_style(style, info));
    EXPECT_EQ(info.chat_template_source, style.chat_template);
    ASSERT_TRUE(info.chat_template);
    EXPECT_EQ(info.chat_template_error, "");
    EXPECT_EQ(info.chat_template->render(R"({"messages":[{"content":"a"}]})")->size(), 2u);
    EXPECT_EQ(info.eos, (std::vector<TokenId>{2, 7, 99}));
}

TEST(KnownModel, WithoutOneTheFilesAreRight) {
    model::ModelInfo info = small();
    ASSERT_TRUE(apply_style({}, info));
    EXPECT_EQ(info.chat_template_source, "of the files");
    EXPECT_EQ(info.eos, std::vector<TokenId>{2});
}

TEST(KnownModel, WhatDoesNotFitTheModelIsToldByItsField) {
    model::ModelInfo info = small();
    registry::Style style;
    style.stop_token_ids = {100};
    auto refused = apply_style(style, info);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().param, "stop_token_ids");
    style = {};
    style.chat_template = "{% if";
    refused = apply_style(style, info);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().param, "chat_template");
}

}  // namespace
}  // namespace baton::supervisor
