"""What a person thinks of pictures: thumbs, stars, pairs, regions and tags, in one file, and what is learned of them."""
