"""Opinions of a person about pictures: thumbs, stars, pairs, regions and tags in one file, votes and folders of pairs; what is
learned of them, and what an update takes of them."""
